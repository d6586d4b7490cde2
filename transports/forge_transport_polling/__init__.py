"""The polling transport: records are files on a branch of the git remote, changed by push.

- ``transport``  changes: gathered, built on the tip, pushed with the expected tip named
- ``files``      the branch as a snapshot of records, and a commit built from writes
"""

from __future__ import annotations

from forge_transport_polling.transport import PollingTransport

__all__ = ["PollingTransport"]
