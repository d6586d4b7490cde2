"""One file per command; ``main`` dispatches to them lazily.

- ``main``     the program: groups, the one error handler
- ``output``   what is printed: text, or one JSON document
- ``here``     the clone a command is run in: repository, class, identity, worker
- ``client``   talks to the clone's daemon, starts it where that is right
- ``options``  options that several commands share
"""
