"""The program ``forge``: finds the command's file, runs it, turns errors into exit codes."""

from __future__ import annotations

import importlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from forge_collab import __version__
from forge_collab.cli import options, output
from forge_collab.core.errors import BugError, ForgeError, UsageError

INTERRUPTED = 130
CLOSED_PIPE = 141


class Commands(click.Group):
    """A group whose commands are imported when they are asked for, each from a file of its own."""

    def __init__(self, *args: Any, files: Mapping[str, tuple[str, str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self._files = files

    def has(self, name: str) -> bool:
        """Whether there is a command of that name; imports nothing."""
        return name in self._files or name in self.commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which they are listed here."""
        return [*self._files, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in self._files:
            return super().get_command(ctx, cmd_name)
        module, name = self._files[cmd_name]
        command = getattr(importlib.import_module(f"forge_collab.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their help, in order."""
        rows = [
            (n, c.get_short_help_str(160))
            for n in self.list_commands(ctx)
            if (c := self.get_command(ctx, n))
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


COLLABORATE = {
    "status": ("status", "status"),
    "start": ("start", "start"),
    "join": ("start", "join"),
    "leave": ("leave", "leave"),
    "end": ("end", "end"),
    "claim": ("claim", "claim"),
    "renew": ("renew", "renew"),
    "note": ("note", "note"),
    "release": ("release", "release"),
    "done": ("done", "done"),
    "takeover": ("takeover", "takeover"),
    "log": ("log", "log"),
    "recover": ("recover", "recover"),
}
DAEMON = {name: ("daemon", name) for name in ("run", "start", "status", "stop", "logs")}
TASK = {
    "list": ("task", "list_"),
    "show": ("task", "show"),
    "add": ("task", "add"),
    "reopen": ("reopen", "reopen"),
    "cancel": ("reopen", "cancel"),
}


@click.group(
    cls=Commands,
    files={
        "init": ("init", "init"),
        "doctor": ("doctor", "doctor"),
        "demo": ("demo.command", "demo"),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-C", "folder", metavar="DIR", help="Run as if started in DIR.")
@click.version_option(__version__, prog_name="forge")
def forge(folder: str | None) -> None:
    """Drive one plan with several people and their agents; the git remote is the coordinator.

    Example: forge collaborate start, then forge collaborate claim --next
    """


@click.group(cls=Commands, files=COLLABORATE, invoke_without_command=True)
@click.option("--watch", is_flag=True, help="As of status.")
@options.as_json
@click.pass_context
def collaborate(context: click.Context, watch: bool, as_json: bool) -> None:
    """Share a plan: who is here, who holds what. Alone it is `collaborate status`.

    Example: forge collaborate start
    """
    if context.invoked_subcommand is None:
        from forge_collab.cli.status import status

        context.invoke(status, watch=watch, as_json=as_json)
    elif watch or as_json:
        raise click.UsageError(f"say it after '{context.invoked_subcommand}'", ctx=context)


@click.group(cls=Commands, files=DAEMON)
def daemon() -> None:
    """The background process of this clone, which keeps leases renewed.

    Example: forge daemon status
    """


@click.group(cls=Commands, files=TASK)
def task() -> None:
    """The tasks of the plan.

    Example: forge task list
    """


forge.add_command(collaborate)
forge.add_command(daemon)
forge.add_command(task)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the program; ends the process with the exit code of the table in the docs."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with forge.make_context("forge", words or ["--help"]) as context:
            forge.invoke(context)
        sys.stdout.flush()
        code = 0
    except ForgeError as error:
        code = _failed(words, error, as_json)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.UsageError as error:
        hint = f"{error.ctx.command_path} --help" if error.ctx else "forge --help"
        code = _failed(words, UsageError(error.format_message(), hint=hint), as_json)
    except click.ClickException as error:
        code = _failed(words, UsageError(error.format_message()), as_json)
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = CLOSED_PIPE
    except Exception as error:  # The one place where a defect of forge ends up.
        code = _failed(words, _crashed(error), as_json)
    sys.exit(code)


def _failed(words: Sequence[str], error: ForgeError, as_json: bool) -> int:
    output.failed(_command(words), error, as_json=as_json)
    return error.exit_code


def _command(words: Sequence[str]) -> str:
    """The command as it was typed, without its options and arguments."""
    found: list[str] = []
    group: click.Command | None = forge
    rest = iter(words)
    for word in rest:
        if word == "-C":
            next(rest, None)
        elif not word.startswith("-") and isinstance(group, Commands) and group.has(word):
            found.append(word)
            group = group.commands.get(word)
    return " ".join(found) if found != ["collaborate"] else "collaborate status"


def _crashed(error: Exception) -> BugError:
    with tempfile.NamedTemporaryFile(
        "w", prefix="forge-crash-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        traceback.print_exception(error, file=file)
    return BugError(
        f"a defect in forge: {type(error).__name__}",
        hint=f"please report {file.name}",
        data={"path": file.name},
    )
