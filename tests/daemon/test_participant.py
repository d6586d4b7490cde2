"""A participant on virtual time, over the memory transport: hours of beats cost nothing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
import trio
from trio.testing import MockClock

from forge_collab.core import audit, keys
from forge_collab.core.board import Board
from forge_collab.core.change import View
from forge_collab.core.errors import HeldError, LeaseLostError, UnavailableError
from forge_collab.core.records import Lease, Participant
from forge_collab.core.tasks import Task
from forge_collab.daemon.participant import SessionParticipant, Settings
from forge_collab.files.journal import load_journal
from forge_collab.testing.clocks import LoopClock
from forge_collab.testing.faulty import Fault, FaultyTransport
from forge_collab.testing.memory import MemoryStore, MemoryTransport
from forge_collab.transport import Context

TTL, BEAT = 120.0, 30.0
MINUTE, HOUR = 60.0, 3600.0
ADA, BEN = "a" * 16, "b" * 16


class FixedPlan:
    """A plan of two tasks that never changes."""

    board = Board([Task(id="T001", title="One"), Task(id="T002", title="Two")])

    async def refresh(self, *, older_than: float = 0.0) -> None:
        """There is nothing to read."""


@dataclass
class Session:
    """One store, the folder of the journals, and what is on the store."""

    folder: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    nonces: itertools.count[int] = field(default_factory=itertools.count)

    @asynccontextmanager
    async def joined(
        self,
        instance: str = ADA,
        *,
        run: str = "run-1",
        journal: str = "",
        idle: float = HOUR,
        branch_tip: Callable[[str, int], Awaitable[str | None]] | None = None,
    ) -> AsyncIterator[SessionParticipant]:
        """A participant that has arrived and whose background work goes on."""
        clock = LoopClock()
        handle = {ADA: "ada", BEN: "ben"}[instance]
        inner = MemoryTransport(Context(instance=instance, handle=handle, clock=clock), self.store)
        async with FaultyTransport(inner) as transport:
            participant = SessionParticipant(
                transport,
                load_journal(self.folder / (journal or instance), instance),
                FixedPlan(),
                clock=clock,
                handle=handle,
                instance=instance,
                run=run,
                new_nonce=lambda: f"nonce-{next(self.nonces)}",
                settings=Settings(idle_release_seconds=idle),
                branch_tip=branch_tip,
            )
            await participant.arrive(session_id="s", repo="r", target="main")
            async with anyio.create_task_group() as tasks:
                await participant.run(tasks)
                yield participant
                tasks.cancel_scope.cancel()

    def lease(self, task: str = "T001") -> Lease | None:
        return View(self.store.snapshot).document(Lease, keys.claim(task))

    def holder(self, task: str = "T001") -> str | None:
        """Who has the task, or None."""
        lease = self.lease(task)
        return lease.claimant.handle if lease and lease.claimant else None

    def renewals(self, instance: str = ADA, task: str = "T001") -> int:
        """The renewal counter of a lease."""
        record = View(self.store.snapshot).document(Participant, keys.PARTICIPANTS + instance)
        return record.renewals.get(keys.claim(task), 0) if record else 0

    def events(self) -> list[str]:
        """What the audit says happened, oldest first."""
        return [entry.event for entry in audit.history(self.store.snapshot)]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    """Run `body` on a clock that jumps to the next moment at which anything happens."""
    trio.run(body, clock=MockClock(autojump_threshold=0))


def trouble(participant: SessionParticipant, *faults: Fault) -> None:
    """What happens to the participant's next changes."""
    transport = participant.transport
    assert isinstance(transport, FaultyTransport)
    transport.script.clear()
    transport.script.extend(faults)


def test_a_lease_whose_worker_calls_is_kept_for_hours_under_one_fence(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada, session.joined(BEN) as ben:
            granted = await ada.claim("main", "T001")
            for _ in range(6):
                await anyio.sleep(50 * MINUTE)
                renewed = await ada.renew("main", "T001", None)
                assert renewed["lease"]["fence"] == granted["lease"]["fence"] == 1
                with pytest.raises(HeldError):
                    await ben.claim("main", "T001")
            assert session.renewals() >= 5 * HOUR / BEAT - 1

    virtually(body)


def test_beats_renew_on_time_and_never_more_than_one_beat_apart(session: Session) -> None:
    async def body() -> None:
        moments: list[float] = []

        async def watch(participant: SessionParticipant) -> None:
            seen, count = participant.transport.snapshot, -1
            while True:
                if session.renewals() != count:
                    count = session.renewals()
                    moments.append(anyio.current_time())
                seen = await participant.transport.wait_moved(seen)

        async with session.joined() as ada:
            await anyio.sleep(7 * MINUTE)
            await ada.claim("main", "T001")
            began = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, ada)
                await anyio.sleep(30 * MINUTE)
                tasks.cancel_scope.cancel()
            renewed = [began, *(moment for moment in moments if moment > began)]
            gaps = [later - earlier for earlier, later in itertools.pairwise(renewed)]
            assert max(gaps) <= BEAT + 0.1
            assert len(gaps) <= 30 * MINUTE / BEAT + 1, "and not all the time"

    virtually(body)


def test_an_idle_participant_that_holds_nothing_hardly_writes(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            before, writes = ada.transport.snapshot, 0
            with anyio.move_on_after(HOUR):
                while True:
                    before = await ada.transport.wait_moved(before)
                    writes += 1
            assert writes <= HOUR / (5 * MINUTE)

    virtually(body)


def test_a_lease_is_given_back_when_its_worker_was_silent_for_an_hour(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            await ada.claim("main", "T001")
            await ada.claim("other", "T002")
            await anyio.sleep(59 * MINUTE)
            assert session.holder() == "ada"
            await ada.note("other", "T002", "still at it", None)
            await anyio.sleep(2 * MINUTE)
            assert session.holder() is None
            assert session.holder("T002") == "ada"
            assert session.events()[-1] == "released_idle"
            assert "silent" in list(ada.lost.values())[-1]
            assert keys.claim("T001") not in ada.held.all
            await anyio.sleep(HOUR)
            assert session.holder("T002") is None

    virtually(body)


def test_a_lease_whose_branch_moves_is_kept_and_given_back_when_it_stops(session: Session) -> None:
    async def body() -> None:
        tip = ["c0"]

        async def branch_tip(task: str, fence: int) -> str | None:
            assert (task, fence) == ("T001", 1)
            return tip[0]

        async with session.joined(branch_tip=branch_tip) as ada:
            await ada.claim("main", "T001")
            for number in range(1, 5):
                await anyio.sleep(50 * MINUTE)
                tip[0] = f"c{number}"
            await anyio.sleep(50 * MINUTE)
            assert session.holder() == "ada"
            await anyio.sleep(12 * MINUTE)
            assert session.holder() is None

    virtually(body)


def test_offline_past_the_margin_the_work_pauses_and_goes_on_when_nobody_took_it(
    session: Session,
) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            await ada.claim("main", "T001")
            trouble(ada, *[Fault.LOSE_REQUEST] * 1000)
            key = keys.claim("T001")
            await anyio.sleep(TTL - BEAT - 1)
            assert not ada.held.is_paused(ada.held.all[key])
            await anyio.sleep(2)
            assert ada.held.is_paused(ada.held.all[key])
            await anyio.sleep(10 * MINUTE)
            assert ada.held.is_paused(ada.held.all[key])
            trouble(ada)
            await anyio.sleep(BEAT)
            assert not ada.held.is_paused(ada.held.all[key])
            lease = session.lease()
            assert lease is not None
            assert lease.fence == ada.held.all[key].fence == 1

    virtually(body)


def test_a_lease_that_was_taken_while_offline_is_lost_and_its_worker_told(
    session: Session,
) -> None:
    async def body() -> None:
        async with session.joined() as ada, session.joined(BEN) as ben:
            await ada.claim("main", "T001")
            trouble(ada, *[Fault.LOSE_REQUEST] * 1000)
            await anyio.sleep(TTL - 1)
            with pytest.raises(HeldError):
                await ben.claim("main", "T001")
            await anyio.sleep(2)
            taken = await ben.claim("main", "T001")
            assert taken["lease"]["fence"] == 2
            trouble(ada)
            await anyio.sleep(1)
            assert ada.held.all == {}
            assert "lease lost" in list(ada.lost.values())[-1]
            assert "ben" in list(ada.lost.values())[-1]
            with pytest.raises(LeaseLostError) as lost:
                await ada.note("main", "T001", "done", None)
            assert lost.value.data["fence"] == 1
            assert lost.value.data["holder"]["fence"] == 2

    virtually(body)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.LATE])
def test_a_claim_whose_end_is_not_known_is_undone_and_free_for_others(
    session: Session, fault: Fault
) -> None:
    async def body() -> None:
        async with session.joined() as ada, session.joined(BEN) as ben:
            trouble(ada, fault)
            with pytest.raises(UnavailableError):
                await ada.claim("main", "T001")
            assert ada.held.all == {}
            await anyio.sleep(1)
            transport = ada.transport
            assert isinstance(transport, FaultyTransport)
            await transport.land_late()
            await anyio.sleep(5)
            assert session.holder() is None
            assert ada.journal.unsettled == {}
            assert session.events()[-1] == "settled"
            assert (await ben.claim("main", "T001"))["acquired"] is True

    virtually(body)


def test_a_claim_that_is_repeated_is_settled_too(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            for _ in range(3):
                await ada.claim("main", "T001")
            assert ada.journal.unsettled == {}
            assert list(ada.held.all) == [keys.claim("T001")]

    virtually(body)


def test_a_claim_is_settled_however_long_the_network_is_gone(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            trouble(ada, Fault.LOSE_ANSWER, *[Fault.LOSE_REQUEST] * 1000)
            with pytest.raises(UnavailableError):
                await ada.claim("main", "T001")
            await anyio.sleep(HOUR)
            assert session.holder() == "ada"
            assert session.renewals() == 0, "what nobody was granted isn't renewed"
            trouble(ada)
            await anyio.sleep(2 * MINUTE)
            assert session.holder() is None
            assert ada.journal.unsettled == {}

    virtually(body)


def test_what_a_crash_left_unsettled_is_settled_by_the_next_run(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            trouble(ada, Fault.LOSE_ANSWER, *[Fault.LOSE_REQUEST] * 1000)
            with pytest.raises(UnavailableError):
                await ada.claim("main", "T001")
        assert session.holder() == "ada"
        async with session.joined(run="run-2") as ada:
            await anyio.sleep(1)
            assert session.holder() is None
            assert ada.journal.unsettled == {}

    virtually(body)


def test_the_next_run_of_an_instance_carries_on_with_what_is_held(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            await ada.claim("main", "T001")
        async with session.joined(run="run-2") as ada, session.joined(BEN) as ben:
            await anyio.sleep(10 * MINUTE)
            with pytest.raises(HeldError):
                await ben.claim("main", "T001")
            again = await ada.claim("main", "T001")
            assert (again["already"], again["lease"]["fence"]) == (True, 1)

    virtually(body)


def test_a_second_run_of_one_instance_stops_all_work_of_the_first(
    session: Session, tmp_path: Path
) -> None:
    async def body() -> None:
        async with session.joined() as first:
            await first.claim("main", "T001")
            await first.claim("main", "T002")
            (tmp_path / "copy").write_bytes((tmp_path / ADA).read_bytes())
            async with session.joined(run="run-2", journal="copy") as second:
                with anyio.fail_after(BEAT + 1):
                    await first.duplicate.wait()
                assert first.held.all == {}
                assert any("duplicate_identity" in event for event in first.lost.values())
                assert set(second.held.all) == {keys.claim("T001"), keys.claim("T002")}
                assert not second.duplicate.is_set()
                await anyio.sleep(10 * MINUTE)
                assert (await second.renew("main", "T001", 1))["lease"]["fence"] == 1

    virtually(body)


def test_many_calls_at_once_of_one_run_are_never_taken_for_a_duplicate(session: Session) -> None:
    async def body() -> None:
        async with session.joined() as ada:
            await ada.claim("main", "T001")
            await ada.claim("main", "T002")
            for _ in range(20):
                trouble(ada, Fault.NONE, Fault.DELAY, Fault.CONFLICT, Fault.DELAY)
                async with anyio.create_task_group() as tasks:
                    for task in ("T001", "T002", "T001", "T002"):
                        tasks.start_soon(ada.renew, "main", task, None)
                await anyio.sleep(BEAT / 3)
            assert not ada.duplicate.is_set()
            assert len(ada.held.all) == 2

    virtually(body)
