"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
_worker = click.option(
    "--as", "worker", metavar="WORKER", help="Who acts, instead of the work tree."
)
_fence = click.option("--fence", type=click.IntRange(min=1), help="Act only under this fence.")


def as_json(command: F) -> F:
    """``--json``."""
    return _json(command)


def acting(command: F) -> F:
    """``--as WORKER --fence N --json``."""
    return _worker(_fence(_json(command)))


def worker(command: F) -> F:
    """``--as WORKER --json``."""
    return _worker(_json(command))


def folder(context: click.Context) -> str | None:
    """What ``-C`` said."""
    found = context.find_root().params.get("folder")
    return None if found is None else str(found)
