"""A clone alone: its own records beside a session's, and which branch its work lands on."""

from __future__ import annotations

from pathlib import Path

from forge_collab import faults
from forge_collab.core import carry, choice, keys
from forge_collab.core.change import Change, Snapshot, Urgency, View
from forge_collab.core.lease import Held
from forge_collab.core.records import Meta
from forge_collab.daemon.process import Place
from forge_collab.files.atomic import remove
from forge_collab.files.config import Config
from forge_collab.files.journal import load_journal
from forge_collab.files.markers import ALONE, Markers
from forge_collab.git.repository import Repository
from forge_collab.transport import Context, Transport, load


class OwnRecords:
    """A clone's own records, while another transport, or none, serves its workers."""

    def __init__(self, common_dir: Path) -> None:
        self._common_dir = common_dir
        self._markers = Markers(common_dir)
        self._journal_path = Place(common_dir).alone_journal_path

    def exist(self) -> bool:
        """Whether this clone ever worked alone, or came home from a session."""
        return self._markers.alone.parent.is_dir()

    def connected(self, *, is_look: bool = False) -> Transport:
        """The transport of these records, for one short use."""
        context = Context(instance="0" * 16, common_dir=self._common_dir, is_look=is_look)
        return load(ALONE)(context)

    async def had(self) -> dict[str, carry.Alone]:
        """Every lease that was given alone, with who of this clone's workers has it still.

        :raises CorruptError: when the records can't be read.
        """
        if not self.exist():
            return {}
        identity = self._markers.read_alone()
        is_ours = identity is not None and self._markers.is_here(identity)
        instance = identity.instance if identity and is_ours else ""
        journal = load_journal(self._journal_path, instance)
        granted = {key: Held(g.fence, g.nonce) for key, g in journal.granted.items()}
        async with self.connected(is_look=True) as own:
            faults.at("carry.before")
            return carry.had_alone(own.snapshot, granted)

    async def take_home(self, there: Snapshot) -> None:
        """Write down what the session's records in `there` say; nobody holds anything alone now.

        :raises CorruptError: when the records can't be read, so can't be written.
        """

        def rule(view: View) -> None:
            carry.take_home(view, there)

        async with self.connected() as own:
            faults.at("carry.before_home")
            await own.commit(Change(rule, "take home"))
        faults.at("carry.after_home")
        remove(self._journal_path)


def target(repository: Repository, config: Config, known: Meta | None) -> str:
    """Where a clone alone lands: what its settings say, else what was settled on before while
    that branch exists, else the branch that its remote or its checkout suggests."""
    if config.target is None and known is not None and repository.has_branch(known.target):
        return known.target
    return choice.target(
        config.target,
        repository.remote_head(config.remote),
        repository.upstream(config.remote),
        repository.branch(),
    )


async def settle_target(transport: Transport, repository: Repository, config: Config) -> str:
    """The target branch alone, which the records name from then on."""
    known = View(transport.snapshot).document(Meta, keys.META)
    wanted = target(repository, config, known)

    def rule(view: View) -> None:
        meta = view.document(Meta, keys.META)
        if meta is not None and meta.target != wanted:
            view.save(keys.META, meta.but(target=wanted))

    if known is not None and known.target != wanted:
        await transport.commit(Change(rule, f"land on {wanted}", Urgency.NOW))
    return wanted
