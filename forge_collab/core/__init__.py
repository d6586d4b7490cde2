"""The rules, pure: time, randomness and identity are arguments.

- ``errors``     the one error tree, with exit codes
- ``names``      what a handle, a task id, an instance may look like
- ``identity``   a session's derived id from a remote's URL; whose clone this is
- ``records``    the documents on the state branch and their codec
- ``change``     a change: a rule over a view that is run again after a conflict
- ``lease``      who holds what: acquire, renew, release, take over, observed expiry
- ``session``    rules over whole records: presence, messages, audit, leaving
- ``tasks``      what a task is and which statuses follow which
- ``board``      the task graph: ready set, priorities, cycles
- ``pacing``     when to push, beat and poll
- ``lifecycle``  the class a crash left behind, and its remedy
- ``turnover``   how one session ends and another begins in its place
- ``healing``    what a branch that was set back has lost, and how it comes back
- ``choice``     which transport, which target branch
- ``audit``, ``keys``  who did what; the keys of records and their files
- ``overview``   one snapshot of a session, as commands show it
"""
