"""The state branch as a snapshot of records, and a commit made of one by a few writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dulwich.objects import ShaFile

from forge_collab.core import keys
from forge_collab.core.change import ABSENT, Absent, Found, Versioned
from forge_collab.git import store as git
from forge_collab.git.store import Store, Tree

_FOLDER = 0o040000
_FILE = 0o100644
_NO_FILE = b"\xff a link or a folder stands where this record's file belongs"
"""What no codec reads: unreadable is never empty."""


@dataclass(frozen=True)
class Files:
    """All records as they are at one commit; files that are no records stay as they are.

    `folders` has every folder by its path, the root under ""; `records` every record by its key.
    """

    commit: str | None = None
    folders: Mapping[str, Tree] = field(default_factory=dict)
    records: Mapping[str, Versioned] = field(default_factory=dict)

    def get(self, key: str) -> Found:
        """The record under `key`, or ABSENT."""
        return self.records.get(key, ABSENT)

    def keys(self, prefix: str) -> Iterable[str]:
        """The keys that start with `prefix`."""
        return [key for key in self.records if key.startswith(prefix)]


def load(store: Store, commit: str, tree: str, before: Files) -> Files:
    """The snapshot at `commit`; reads only what differs from `before`. Call in a worker thread.

    :raises CorruptError: when an object is missing.
    """
    known_blobs = {f.version: f for f in before.records.values() if f.value is not _NO_FILE}
    known_trees = {tree.oid: tree for tree in before.folders.values()}
    folders: dict[str, Tree] = {}
    records: dict[str, Versioned] = {}
    waiting = [("", tree)]
    while waiting:
        path, oid = waiting.pop()
        folder = known_trees.get(oid) or store.tree(oid)
        folders[path] = folder
        for name, (mode, child) in folder.entries.items():
            whole = f"{path}/{name}" if path else name
            key = keys.key_of(whole)
            if mode == _FOLDER and (key is None or key.startswith(keys.SHARED)):
                waiting.append((whole, child))
            elif key is not None and mode & 0o170000 == 0o100000:
                records[key] = known_blobs.get(child) or Versioned(store.blob(child), child)
            elif key is not None:
                records[key] = Versioned(_NO_FILE, child)
    return Files(commit, folders, records)


def build(before: Files, writes: Mapping[str, bytes | Absent]) -> tuple[list[ShaFile], Files]:
    """The objects that `writes` on top of `before` need, the root folder last, and the result.

    The result has no commit yet.
    """
    objects: list[ShaFile] = []
    records = dict(before.records)
    edits: dict[str, dict[str, tuple[int, str]]] = {"": dict(_entries(before, ""))}
    for key, value in writes.items():
        path, _, name = keys.path_of(key).rpartition("/")
        entries = edits.setdefault(path, dict(_entries(before, path)))
        if value is ABSENT:
            entries.pop(name, None)
            records.pop(key, None)
        else:
            blob = git.blob(value)
            oid = blob.id.decode()
            objects.append(blob)
            entries[name] = (_FILE, oid)
            records[key] = Versioned(value, oid)
    folders = _fold(before, edits, objects)
    return objects, Files(None, folders, records)


def _entries(before: Files, path: str) -> Mapping[str, tuple[int, str]]:
    tree = before.folders.get(path)
    return tree.entries if tree else {}


def _fold(
    before: Files, edits: dict[str, dict[str, tuple[int, str]]], objects: list[ShaFile]
) -> dict[str, Tree]:
    """Write changed folders from the deepest up, each into its parent."""
    folders = dict(before.folders)
    for path in list(edits):
        while path:
            path = path.rpartition("/")[0]
            edits.setdefault(path, dict(_entries(before, path)))
    for path in sorted(edits, key=lambda p: p.count("/") + bool(p), reverse=True):
        entries = edits[path]
        parent, _, name = path.rpartition("/")
        if not entries and path:
            folders.pop(path, None)
            edits[parent].pop(name, None)
            continue
        tree = git.folder(entries)
        oid = tree.id.decode()
        objects.append(tree)
        folders[path] = Tree(oid, entries)
        if path:
            edits[parent][name] = (_FOLDER, oid)
    return folders
