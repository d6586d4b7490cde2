"""Every setting of collaboration, and where its value comes from; running git is left to others.

    flags                                      --handle NAME
    environment                                FORGE_COLLAB_CLAIM_TTL_SECONDS=60
    git config                                 forge.claim-ttl-seconds = 60
    the repository's .forge/config/forge.toml  [collab] claim_ttl_seconds = 60
    the repository's .forge/config.json        {"collab": {"claim_ttl_seconds": 60}}
    the user's ~/.config/forge/config.toml     [collab] claim_ttl_seconds = 60

A value further up wins, key by key. The handle says who somebody is, so no file that the
repository shares may set it, and no environment that a hook or a CI job hands on.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from forge_collab.core import names
from forge_collab.core.errors import UsageError
from forge_collab.files.atomic import read_or_none

_ENVIRONMENT = "FORGE_COLLAB_"
_GIT = "forge."

# Magit's Forge keeps these under the same section; they are no mistake of our user's.
_OTHER_TOOLS = {"autopull", "graphqlitemlimit"}


def _rule(check: Callable[[str], str]) -> AfterValidator:
    def checked(text: str) -> str:
        try:
            return check(text)
        except UsageError as error:
            raise ValueError(error.message) from error

    return AfterValidator(checked)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


def _transport(text: str) -> str:
    if re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", text):
        return text
    raise UsageError("'auto' or the name of an installed transport, such as 'polling'")


def _session(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", text):
        return text
    raise UsageError("letters, digits, '_', '.', '-', at most 64, starting with a letter or digit")


def _target(text: str) -> str:
    parts = text.split("/")
    odd = any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    if odd or text == "HEAD" or text.startswith(("-", "refs/")):
        raise UsageError(f"'{text}' can't be the name of a branch, such as main")
    names.ref(f"refs/heads/{text}")
    if parts[0].lower() == "forge":
        raise UsageError("forge/* belongs to forge; the target is a branch of the project")
    return text


def _commit_subject(text: str) -> str:
    without = text.replace("{what}", "", 1)
    if without != text and not re.search(r"[{}\x00-\x1f\x7f]", without) and len(text) <= 200:
        return text
    raise UsageError("one line of at most 200 characters with {what} in it once, no other braces")


_Number = Annotated[int | float, BeforeValidator(_no_bool)]
_Unset = BeforeValidator(_none_if_empty)


class Config(BaseModel):
    """The settings, each within its bounds; made by `load_config`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transport: Annotated[str, _rule(_transport)] = Field(
        "auto", description="How changes travel; auto is ably with a key, else polling."
    )
    remote: Annotated[str, _rule(names.remote)] = Field(
        "origin", description="The one remote that holds state, target and task branches."
    )
    target: Annotated[Annotated[str, _rule(_target)] | None, _Unset] = Field(
        None, description="The branch that finished tasks land on; unset, the remote's HEAD."
    )
    poll_seconds: _Number = Field(
        2.5, ge=0.05, le=3600, description="Seconds between looks at the remote while work goes on."
    )
    idle_poll_seconds: _Number = Field(
        15, ge=0.05, le=3600, description="Seconds between looks at the remote while all is quiet."
    )
    network_timeout_seconds: _Number = Field(
        15, ge=0.5, le=600, description="Seconds after which a git command to the remote is ended."
    )
    claim_ttl_seconds: _Number = Field(
        120, ge=1, le=3600, description="Seconds without a beat after which a claim may be taken."
    )
    heartbeat_seconds: _Number = Field(
        30, ge=0.05, le=1200, description="Seconds between the beats that keep claims."
    )
    consolidation_ttl_seconds: _Number = Field(
        30, ge=1, le=3600, description="The same as claim_ttl_seconds, for a consolidation."
    )
    consolidation_heartbeat_seconds: _Number = Field(
        10, ge=0.05, le=1200, description="The same as heartbeat_seconds, for a consolidation."
    )
    idle_release_minutes: _Number = Field(
        60, ge=0.01, le=10080, description="Minutes without a sign of work, then a claim goes back."
    )
    state_ref: Annotated[str, _rule(names.ref)] = Field(
        "refs/heads/forge/collab-state", description="The ref on the remote that holds the state."
    )
    session: Annotated[Annotated[str, _rule(_session)] | None, _Unset] = Field(
        None, description="A name for the session; unset, derived from the remote's address."
    )
    commit_subject: Annotated[str, _rule(_commit_subject)] = Field(
        "forge: {what} [skip ci]", description="The subject of commits on the state branch."
    )
    presence: Literal["full", "minimal"] = Field(
        "full", description="What teammates see; minimal is nothing but handle and beat."
    )
    route_epsilon: _Number = Field(
        0.05, ge=0, le=1, description="The score a teammate must exceed to be asked alone."
    )
    auto_push: bool = Field(
        True, description="Whether task branches are pushed before they are done."
    )
    handle: Annotated[Annotated[str, _rule(names.handle)] | None, _Unset] = Field(
        None, description="Your name in a session; unset, from user.email or the login name."
    )

    @model_validator(mode="after")
    def _fit_together(self, info: ValidationInfo) -> Config:
        sources: Mapping[str, str] = info.context or {}
        for ttl, beat in (
            ("claim_ttl_seconds", "heartbeat_seconds"),
            ("consolidation_ttl_seconds", "consolidation_heartbeat_seconds"),
        ):
            self._check_beats(ttl, beat, sources)
        if self.target and self.state_ref == f"refs/heads/{self.target}":
            raise UsageError(
                f"{_said('state_ref', self.state_ref, sources)} is the target branch too",
                hint="give the state a branch of its own",
                data=_where("state_ref", sources),
            )
        return self

    def _check_beats(self, ttl: str, beat: str, sources: Mapping[str, str]) -> None:
        ttl_seconds, beat_seconds = getattr(self, ttl), getattr(self, beat)
        if beat_seconds * 3 <= ttl_seconds + 1e-9:  # 0.4 * 3 > 1.2 in binary fractions
            return
        raise UsageError(
            f"{_said(ttl, ttl_seconds, sources)} is less than three beats of "
            f"{_said(beat, beat_seconds, sources)}",
            hint=f"{beat} = {ttl_seconds / 3:g} or less, or {ttl} = {beat_seconds * 3:g} or more",
            data=_where(ttl if ttl in sources or beat not in sources else beat, sources),
        )


class Setting(NamedTuple):
    """One setting as the docs show it; `environment` is None where no variable may set it."""

    key: str
    default: Any
    meaning: str
    environment: str | None
    git_config: str


SETTINGS: tuple[Setting, ...] = tuple(
    Setting(
        key=key,
        default=field.default,
        meaning=field.description or "",
        environment=None if key == "handle" else _ENVIRONMENT + key.upper(),
        git_config=_GIT + key.replace("_", "-"),
    )
    for key, field in Config.model_fields.items()
)

_BY_ENVIRONMENT = {s.environment: s.key for s in SETTINGS if s.environment}
_BY_GIT = {s.git_config: s.key for s in SETTINGS}

_Given = tuple[str, object, str]  # key, raw value, and where it stands in words


def load_config(
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    git_config: Sequence[tuple[str, str]],
    root: Path | None,
    home: Path,
) -> tuple[Config, list[str]]:
    """The settings in force, and warnings about what was read and has no effect.

    `flags` are keyed like the fields, None meaning not given. `git_config` are the pairs of
    `git config --list` in git's order, the last one winning, a key without a value as "true".
    An empty environment variable counts as unset; an empty `target`, `session` or `handle`
    anywhere else means its default.

    :raises UsageError: when a value is not allowed (data has `path` and `key`) or a file is no
        TOML or JSON (data has `path` and `line`).
    :raises EnvironmentError_: when a file exists and can't be read.
    :raises TypeError: when `flags` has a name that is no setting.
    """
    warnings: list[str] = []
    given = [
        *_from_file(_user_file(environ, home), warnings),
        *_from_repository(root, warnings),
        *_from_git(git_config, warnings),
        *_from_environment(environ, warnings),
        *_from_flags(flags),
    ]
    values = {key: value for key, value, _ in given}
    return _validated(values, {key: source for key, _, source in given}), warnings


def _validated(values: Mapping[str, object], sources: Mapping[str, str]) -> Config:
    try:
        return Config.model_validate(values, context=sources)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        own_words = first["type"] == "value_error" and key not in _NUMBERS
        allowed = _printable(str(first["ctx"]["error"])) if own_words else _allowed(key)
        raise UsageError(
            f"{_said(key, values[key], sources)} can't be: {allowed}",
            hint="docs/collaborate.md lists every setting",
            data=_where(key, sources),
        ) from error


def _allowed(key: str) -> str:
    field = Config.model_fields[key]
    if get_origin(field.annotation) is Literal:
        return " or ".join(get_args(field.annotation))
    if field.annotation is bool:
        return "true or false"
    if key in _NUMBERS:
        return "a number from {} to {}".format(*_NUMBERS[key])
    return "text in quotes"


def _bounds(metadata: Iterable[object]) -> tuple[object, ...]:
    found = [*metadata]
    return (
        *(m.ge for m in found if isinstance(m, Ge)),
        *(m.le for m in found if isinstance(m, Le)),
    )


_NUMBERS = {
    key: bounds for key, field in Config.model_fields.items() if (bounds := _bounds(field.metadata))
}


def _said(key: str, value: object, sources: Mapping[str, str]) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return f"{key} = {shown} ({sources[key]})" if key in sources else f"{key} = {shown}"


def _printable(text: str) -> str:
    """A repository's file must not send control characters to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _where(key: str, sources: Mapping[str, str]) -> dict[str, str]:
    return {"path": sources.get(key, "default"), "key": key}


def _from_flags(flags: Mapping[str, object]) -> Iterator[_Given]:
    for key, value in flags.items():
        if key not in Config.model_fields:
            raise TypeError(f"'{key}' is no setting")
        if value is not None:
            yield key, value, "--" + key.replace("_", "-")


def _from_environment(environ: Mapping[str, str], warnings: list[str]) -> Iterator[_Given]:
    for name in sorted(n for n in environ if n.startswith(_ENVIRONMENT)):
        if key := _BY_ENVIRONMENT.get(name):
            if environ[name]:
                yield key, environ[name], name
        elif name == _ENVIRONMENT + "HANDLE":
            warnings.append(f"{name} is ignored: git config forge.handle says who you are")
        else:
            warnings.append(f"unknown variable {name}{_nearest(name, _BY_ENVIRONMENT)}")


def _from_git(pairs: Sequence[tuple[str, str]], warnings: list[str]) -> Iterator[_Given]:
    for full_name, value in pairs:
        name = full_name.lower()
        if key := _BY_GIT.get(name):
            yield key, value, f"git config {name}"
        elif _is_ours(name):
            warnings.append(f"unknown key {full_name!r} in git config{_nearest(name, _BY_GIT)}")


def _is_ours(name: str) -> bool:
    """Whether an unknown git key is worth a warning; other subsections are other rooms' keys."""
    section, _, rest = name.partition(".")
    if section != "forge" or rest in _OTHER_TOOLS:
        return False
    return "." not in rest or rest.startswith("collab.")


def _from_repository(root: Path | None, warnings: list[str]) -> Iterator[_Given]:
    if root is None:
        return
    for name in (".forge/config.json", ".forge/config/forge.toml"):
        path = root / name
        # A link out of the repository could name /dev/zero, or a secret that an error would show.
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
            warnings.append(f"{path} leads out of the repository and is not read")
            continue
        for key, value, source in _from_file(path, warnings):
            if key == "handle":
                warnings.append(f"handle in {path} is ignored: git config forge.handle NAME")
            else:
                yield key, value, source


def _user_file(environ: Mapping[str, str], home: Path) -> Path:
    stated = Path(environ.get("XDG_CONFIG_HOME", ""))
    return (stated if stated.is_absolute() else home / ".config") / "forge" / "config.toml"


def _from_file(path: Path, warnings: list[str]) -> Iterator[_Given]:
    document = _document(path)
    for key, value in document.items():
        if key in Config.model_fields and not isinstance(value, dict):
            warnings.append(f"{key} in {path} has no effect outside of [collab]")
    table = document.get("collab", {})
    if not isinstance(table, dict):
        raise UsageError(
            f"collab in {path} must be a table of settings",
            data={"path": str(path), "key": "collab"},
        )
    for key, value in table.items():
        if key in Config.model_fields:
            yield key, value, str(path)
        else:
            near = _nearest(key, Config.model_fields)
            warnings.append(f"unknown key {'collab.' + key!r} in {path}{near}")


def _document(path: Path) -> dict[str, Any]:
    data = read_or_none(path)
    if data is None:
        return {}
    try:
        text = data.decode("utf-8-sig")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, data, error) from error
    if not isinstance(document, dict):
        raise _unreadable(path, data, ValueError("not a table of settings: line 1 "))
    return document


def _unreadable(path: Path, data: bytes, error: Exception) -> UsageError:
    said = _printable(re.sub(r"(: line \d+ .*| \(at .*\))$", "", str(error)))
    line = _line(data, error)
    return UsageError(
        f"{path}, line {line}: {said}",
        hint="mend that line, or move the file away",
        data={"path": str(path), "line": line},
    )


def _line(data: bytes, error: Exception) -> int:
    if isinstance(error, UnicodeDecodeError):
        return data.count(b"\n", 0, error.start) + 1
    if stated := re.search(r"line (\d+)", str(error)):
        return int(stated[1])
    return max(1, len(data.splitlines()))


def _nearest(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {found[0]}?" if found else ""
