"""forge: several people and their agents drive one plan in one git repository.

Rooms, each importing only from those below it:

- ``cli``        one file per command
- ``daemon``     carries out what the core decides: heartbeats, journal, local socket, process
- ``testing``    published: the transport contract suite and transports for tests
- ``files``      ``.forge/`` and the per-clone folder on disk
- ``git``        the only room that runs git
- ``transport``  the contract of a transport, the one public plug-in point
- ``clock``, ``faults``  the seams through which time and trouble come in
- ``core``       the rules; no I/O, no clock, no randomness
"""

from __future__ import annotations

__version__ = "0.1.0"
