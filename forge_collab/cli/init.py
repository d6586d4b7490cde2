"""``forge init``: make `.forge/` and its ignore rules."""

from __future__ import annotations

import click

from forge_collab.cli import options, output
from forge_collab.cli.here import here

OFFERS = {
    "to keep forge's branches out of your fetches and graphs": (
        "git config --add remote.origin.fetch '^refs/heads/forge/*'"
    ),
    "to keep a CI that doesn't know [skip ci] away from them": "branches-ignore: ['forge/**']",
}


@click.command()
@options.as_json
@click.pass_context
def init(context: click.Context, as_json: bool) -> None:
    """Make .forge/, its ignore rules and an example configuration; twice is nothing more.

    Example: forge init
    """
    from forge_collab.files import ignore

    clone = here(options.folder(context))
    made = ignore.init_tree(clone.root)
    if ignore.add_excludes(clone.repository.excludes()):
        made.append("info/exclude")
    text = [f"made {path}" for path in made] or ["everything is there already"]
    text += [f"{why}:\n  {line}" for why, line in OFFERS.items()]
    text.append("next: forge task add 'TITLE', then forge collaborate start")
    data = {"made": made, "offers": list(OFFERS.values())}
    output.done("init", data, text, as_json=as_json)
