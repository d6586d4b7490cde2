"""Does what the core decides, one process per clone.

- ``participant``  this clone in its session: claims, beats, settling, losing
- ``holdings``     what its workers hold, as the journal remembers it
- ``membership``   joining the session and leaving it, with all that takes
- ``connecting``   which transport, made with what
- ``plan``         which tasks exist: the target branch and the state branch
- ``service``      what the local socket offers, method by method
- ``server``       the local socket: newline-delimited JSON-RPC 2.0
- ``process``      the process: lock, socket path, background start, log
- ``main``         lock, signals, guard: from the first step to the last
- ``__main__``     ``python -m forge_collab.daemon``
"""
