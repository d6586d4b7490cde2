"""The local transport: a clone's own records, in one file that all its work trees share.

- ``transport``  changes: one at a time behind a lock on disk, each writes the file whole
- ``file``       the file: read as a snapshot, written so that it is always whole
"""

from __future__ import annotations

from forge_transport_local.transport import LocalTransport

__all__ = ["LocalTransport"]
