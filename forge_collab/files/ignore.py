"""What git is to track of `.forge/`, and the tree that `forge init` makes; git itself isn't run.

Three places take part, because no single one reaches everything: the carve-out at the end of
the repository's `.gitignore` undoes a rule that hides `.forge/` whole, the nested `.gitignore`
in `.forge/collab/` hides a clone's own files there, and `info/exclude` hides them also on
branches that have neither.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path

from forge_collab.core.errors import EnvironmentError_
from forge_collab.files.atomic import (
    TEMPORARY_GLOB,
    explained,
    read_or_none,
    remove,
    write_atomic,
)
from forge_collab.files.config import SETTINGS, Setting

CARVE_OUT = (
    "# forge: collab carve-out",
    "!/.forge/",
    "/.forge/*",
    "!/.forge/collab/",
    "!/.forge/config/",
    "!/.forge/specs/",
    "!/.forge/plans/",
    "!/.forge/tasks/",
)

NESTED_IGNORE = (
    "# forge: this clone's own",
    "/participant.json",
    "/.enabled",
    "/flag-emit-log-*.jsonl",
    "!/.gitignore",
)

NEVER_TRACKED = (
    "/.forge/collab/participant.json",
    "/.forge/collab/.enabled",
    "/.forge/collab/flag-emit-log-*.jsonl",
    "/.forge/runs/",
    "/.forge/worktrees/",
    "/.forge/state.md",
    "/.forge/loop.lock",
    f"/**/{TEMPORARY_GLOB}",
)

PROBES: tuple[tuple[str, bool], ...] = (
    (".forge/config/forge.toml", False),
    (".forge/config/workflows/review.toml", False),
    (".forge/specs/login.md", False),
    (".forge/plans/login.md", False),
    (".forge/tasks/T001.yaml", False),
    (".forge/collab/.gitignore", False),
    (".forge/collab/brainstorm/inputs-ada.md", False),
    (".forge/collab/consolidated.md", False),
    (".forge/collab/flags/F000000000000.md", False),
    (".forge/collab/questions/Q000000000000.md", False),
    (".forge/collab/participant.json", True),
    (".forge/collab/.enabled", True),
    (".forge/collab/flag-emit-log-ada.jsonl", True),
    (".forge/runs/R1/result.json", True),
    (".forge/worktrees/T001/README.md", True),
    (".forge/state.md", True),
    (".forge/loop.lock", True),
    (".forge/tasks/.forge-1-00000000.tmp", True),
)
"""Paths and whether `git check-ignore --no-index` must say that they are ignored."""

_BEGIN = "# forge: never tracked (begin)"
_END = "# forge: never tracked (end)"
_FOLDERS = ("config", "tasks", "specs", "plans", "collab")


def add_carve_out(gitignore: Path) -> bool:
    """Appends the carve-out where it is missing; says whether it did.

    The user's bytes stay as they are, and the new lines end as theirs do.

    :raises EnvironmentError_: when the file can't be read or written, or is a symbolic link.
    """
    _refuse_link(gitignore)
    content = read_or_none(gitignore) or b""
    if _find_carve_out(_split(content)) is not None:
        return False
    _rewrite(gitignore, _ended(content) + _lines(CARVE_OUT, _line_end(content)))
    return True


def remove_carve_out(gitignore: Path) -> bool:
    """Takes the carve-out away, and the file too if nothing else is in it; says whether it did.

    :raises EnvironmentError_: when the file can't be read or written, or is a symbolic link.
    """
    _refuse_link(gitignore)
    lines = _split(read_or_none(gitignore) or b"")
    start = _find_carve_out(lines)
    if start is None:
        return False
    while start is not None:
        del lines[start : start + len(CARVE_OUT)]
        start = _find_carve_out(lines)
    if lines:
        _rewrite(gitignore, b"".join(lines))
    else:
        remove(gitignore)
    return True


def add_excludes(exclude_file: Path) -> bool:
    """Puts the never-tracked paths into git's `info/exclude`; says whether that changed it.

    An older block between the two markers is replaced where it stands; a link is followed, as
    git does there.

    :raises EnvironmentError_: when the file can't be read or written.
    """
    path = Path(os.path.realpath(exclude_file))
    content = read_or_none(path) or b""
    before, after = _around_block(content)
    block = _lines((_BEGIN, *NEVER_TRACKED, _END), _line_end(content))
    wanted = _ended(before) + block + after
    if wanted == content:
        return False
    with explained("make", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    _rewrite(path, wanted)
    return True


def init_tree(root: Path) -> list[str]:
    """Makes what is missing of `.forge/` and the carve-out, and names it relative to `root`.

    No existing file is overwritten; a second call makes nothing.

    :raises EnvironmentError_: when something can't be made, or a part of it is a symbolic link,
        behind which git would track nothing.
    """
    made = [name for name in _FOLDERS if _make_folder(root, f".forge/{name}")]
    files = {
        ".forge/collab/.gitignore": _lines(NESTED_IGNORE, b"\n"),
        ".forge/config/forge.toml": example_config().encode(),
    }
    return [
        *(f".forge/{name}" for name in made),
        *(name for name, content in files.items() if _make_file(root / name, content)),
        *([".gitignore"] if add_carve_out(root / ".gitignore") else []),
    ]


def example_config() -> str:
    """A `forge.toml` that changes nothing: each setting with meaning and default, commented out."""
    return "\n\n".join((_EXAMPLE_HEAD, *map(_example, SETTINGS))) + "\n"


_EXAMPLE_HEAD = """\
# Settings that everybody who works in this repository shares. To change one, take away the
# first '#' of its line. `git config forge.<key-with-dashes>` and FORGE_COLLAB_<KEY> go before it.

[collab]"""


def _example(setting: Setting) -> str:
    if setting.environment is None:
        return (
            f"# {setting.meaning}\n"
            f"# Never from a repository's file: git config {setting.git_config} NAME"
        )
    default = "" if setting.default is None else setting.default
    # JSON writes numbers, booleans and plain text as TOML does.
    return f"# {setting.meaning}\n#{setting.key} = {json.dumps(default)}"


def _make_folder(root: Path, name: str) -> bool:
    for path in (root / ".forge", root / name):
        _refuse_link(path)
    with explained("make", root / name):
        is_new = not (root / name).is_dir()
        (root / name).mkdir(parents=True, exist_ok=True)
    return is_new


def _make_file(path: Path, content: bytes) -> bool:
    if path.exists() or path.is_symlink():
        return False
    write_atomic(path, content)
    return True


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise EnvironmentError_(
            f"{path} is a symbolic link, and git doesn't look behind it",
            hint="put a file or folder of its own in its place",
            data={"path": str(path)},
        )


def _rewrite(path: Path, content: bytes) -> None:
    with explained("read", path):
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    write_atomic(path, content, mode=mode)


def _find_carve_out(lines: list[bytes]) -> int | None:
    bare = [line.rstrip(b"\r\n") for line in lines]
    wanted = [line.encode() for line in CARVE_OUT]
    starts = (i for i, line in enumerate(bare) if line == wanted[0])
    return next((i for i in starts if bare[i : i + len(wanted)] == wanted), None)


def _around_block(content: bytes) -> tuple[bytes, bytes]:
    """What stands before and after our block; a begin without an end is a block of one line."""
    lines = _split(content)
    bare = [line.rstrip(b"\r\n") for line in lines]
    if _BEGIN.encode() not in bare:
        return content, b""
    start = bare.index(_BEGIN.encode())
    rest = bare[start:]
    stop = start + (rest.index(_END.encode()) if _END.encode() in rest else 0) + 1
    return b"".join(lines[:start]), b"".join(lines[stop:])


def _split(content: bytes) -> list[bytes]:
    return io.BytesIO(content).readlines()  # by \n only, as git does


def _line_end(content: bytes) -> bytes:
    with_return = content.count(b"\r\n")
    return b"\r\n" if with_return > content.count(b"\n") - with_return else b"\n"


def _ended(content: bytes) -> bytes:
    return content if not content or content.endswith(b"\n") else content + _line_end(content)


def _lines(lines: Iterable[str], line_end: bytes) -> bytes:
    return b"".join(line.encode() + line_end for line in lines)
