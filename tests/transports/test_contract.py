"""The contract suite over every transport there is without a network, and over scripted trouble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, cycle
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest
from gitworld import World

from forge_collab.core.change import ABSENT, Absent, Change, View
from forge_collab.core.errors import ForgeError, HeldError, RefusedError, UnavailableError
from forge_collab.testing import contract
from forge_collab.testing.contract import COUNTER, TransportContract, count_up, value
from forge_collab.testing.faulty import Fault, FaultyTransport
from forge_collab.testing.memory import MemoryStore, MemoryTransport
from forge_collab.transport import Transport, load

T = TypeVar("T")


class TestMemory(TransportContract):
    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    def make(self, count: int) -> list[Transport]:
        store = MemoryStore()
        return [MemoryTransport(self.context(n), store) for n in range(count)]


class TestFaultyWithoutTrouble(TransportContract):
    def make(self, count: int) -> list[Transport]:
        store = MemoryStore()
        return [FaultyTransport(MemoryTransport(self.context(n), store)) for n in range(count)]


class TestFaultyWithConflicts(TransportContract):
    """Every change has its rule run twice, as after a conflict: nobody notices."""

    def make(self, count: int) -> list[Transport]:
        store = MemoryStore()
        inner = [MemoryTransport(self.context(n), store) for n in range(count)]
        return [FaultyTransport(client, [Fault.CONFLICT] * 1000) for client in inner]


class TestLocal(TransportContract):
    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.common_dir = tmp_path

    def make(self, count: int) -> list[Transport]:
        local = load("local")
        return [local(self.context(n, common_dir=self.common_dir)) for n in range(count)]


class TestPolling(TransportContract):
    writers = 4
    rounds = 4

    @pytest.fixture(autouse=True)
    def place(self, world: World) -> None:
        self.world = world

    def make(self, count: int) -> list[Transport]:
        polling = load("polling")
        clones = [self.world.clone(f"clone-{n}") for n in range(count)]
        return [polling(self.world.context(clone, n)) for n, clone in enumerate(clones)]


# Trouble by script


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def faulty(store: MemoryStore, *script: Fault, number: int = 0) -> FaultyTransport:
    context = TestMemory().context(number)
    return FaultyTransport(MemoryTransport(context, store), script)


COUNT = Change(count_up, "count")


@pytest.mark.anyio
async def test_a_lost_answer_is_unavailable_and_the_change_took_effect(store: MemoryStore) -> None:
    async with faulty(store, Fault.LOSE_ANSWER) as client:
        with pytest.raises(UnavailableError):
            await client.commit(COUNT)
        assert value(client.snapshot, COUNTER) == b"1"
        assert await client.commit(COUNT) == 2


@pytest.mark.anyio
async def test_a_lost_request_is_unavailable_and_never_takes_effect(store: MemoryStore) -> None:
    async with faulty(store, Fault.LOSE_REQUEST) as client:
        with pytest.raises(UnavailableError):
            await client.commit(COUNT)
        await client.land_late()
        assert await client.commit(COUNT) == 1


@pytest.mark.anyio
async def test_a_late_change_takes_effect_where_nothing_came_since(store: MemoryStore) -> None:
    async with faulty(store, Fault.LATE) as client:
        with pytest.raises(UnavailableError):
            await client.commit(COUNT)
        assert value(client.snapshot, COUNTER) is None
        await client.land_late()
        assert value(client.snapshot, COUNTER) == b"1"
        await client.land_late()
        assert value(client.snapshot, COUNTER) == b"1"


@pytest.mark.anyio
async def test_a_late_change_is_dead_after_a_later_one_of_its_client(store: MemoryStore) -> None:
    async with faulty(store, Fault.LATE) as client:
        with pytest.raises(UnavailableError):
            await client.commit(COUNT)
        await client.cas("tasks/T1", ABSENT, b"later")
        await client.land_late()
        assert await client.list("") == ["tasks/T1"]


@pytest.mark.anyio
async def test_several_late_changes_take_effect_at_most_one(store: MemoryStore) -> None:
    async with faulty(store, Fault.LATE, Fault.LATE) as client:
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await client.commit(COUNT)
        await client.land_late()
        assert value(client.snapshot, COUNTER) == b"1"


@pytest.mark.anyio
async def test_a_refusal_has_the_servers_words_and_writes_nothing(store: MemoryStore) -> None:
    async with faulty(store, Fault.REFUSE) as client:
        with pytest.raises(RefusedError) as caught:
            await client.commit(COUNT)
        assert caught.value.data["server"] == "no"
        assert await client.list("") == []
        assert await client.commit(COUNT) == 1


@pytest.mark.anyio
async def test_after_a_conflict_the_rule_knows_that_another_came_first(store: MemoryStore) -> None:
    def rule(view: View) -> int:
        runs.append(view.lost)
        return count_up(view)

    runs: list[int] = []
    async with faulty(store, Fault.CONFLICT) as client:
        assert await client.commit(Change(rule, "count")) == 1
    assert runs == [0, 1]


@pytest.mark.anyio
async def test_a_delayed_change_takes_effect_later(store: MemoryStore) -> None:
    async with faulty(store, Fault.DELAY) as client:
        began = anyio.current_time()
        assert await client.commit(COUNT) == 1
        assert anyio.current_time() - began >= 1


@pytest.mark.anyio
async def test_who_asks_again_after_each_trouble_counts_no_less(store: MemoryStore) -> None:
    """Six clients, each with another order of troubles, each until it was told six times."""
    faults = [Fault.LOSE_ANSWER, Fault.LATE, Fault.CONFLICT, Fault.REFUSE, Fault.LOSE_REQUEST]
    told: list[int] = []

    async def count(client: FaultyTransport) -> None:
        for _ in range(6):
            while True:
                try:
                    told.append(await client.commit(COUNT))
                    break
                except (UnavailableError, RefusedError):
                    await client.land_late()

    def scripts() -> Iterator[list[Fault]]:
        for start in range(6):
            turned = chain(faults[start:], faults[:start])
            yield [fault for fault, _ in zip(cycle(turned), range(12), strict=False)]

    clients = [faulty(store, *script, number=n) for n, script in enumerate(scripts())]
    for client in clients:
        await client.connect()
    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(count, client)
    total = int(value(store.snapshot, COUNTER) or b"0")
    for client in reversed(clients):
        await client.aclose()
    assert len(told) == len(set(told)) == 36
    assert total >= 36


# The suite itself: transports that are wrong, each in one way, and who finds out


class LastOneWins(MemoryTransport):
    async def cas(self, key: str, expected: str | Absent, value: bytes) -> None:
        await self.commit(Change(lambda view: view.put(key, value), "write"))


class Stale(MemoryTransport):
    """Judges on what it saw when it last looked."""

    def follow(self) -> None:
        if not self._is_open or self.store.snapshot.keys("") == []:
            super().follow()

    async def refresh(self) -> None:
        super().follow()

    async def _commit(self, change: Change[T]) -> T:
        view = View(self.snapshot)
        answer = change.rule(view)
        self.store.apply(view.writes)
        super().follow()
        return answer


class Torn(MemoryTransport):
    """Writes one key after another."""

    async def _commit(self, change: Change[T]) -> T:
        view = View(self.store.snapshot)
        answer = change.rule(view)
        for key, data in view.writes.items():
            self.store.apply({key: data})
            await anyio.lowlevel.checkpoint()
        return answer


class WritesAnyway(MemoryTransport):
    async def _commit(self, change: Change[T]) -> T:
        view = View(self.store.snapshot)
        try:
            return change.rule(view)
        finally:
            self.store.apply(view.writes)


class Careless(MemoryTransport):
    """Lets another in between judging and writing."""

    async def _commit(self, change: Change[T]) -> T:
        view = View(self.store.snapshot)
        answer = change.rule(view)
        await anyio.lowlevel.checkpoint()
        self.store.apply(view.writes)
        return answer


class Gossip(MemoryTransport):
    """Believes what messages say of their addressee."""

    async def _post(self, event: str, data: Mapping[str, Any], to: str | None, soon: bool) -> None:
        await super()._post(event, data, data.get("to", to), soon)


WRONG: list[tuple[type[MemoryTransport], str]] = [
    (LastOneWins, "test_an_old_version_is_a_conflict_that_says_what_is_there"),
    (LastOneWins, "test_creating_what_exists_is_a_conflict_that_says_what_is_there"),
    (Stale, "test_a_no_is_decided_on_a_snapshot_read_after_the_call"),
    (Stale, "test_a_yes_on_an_old_snapshot_is_asked_again_on_the_newer_one"),
    (Stale, "test_a_change_made_on_an_old_snapshot_keeps_what_came_first"),
    (Torn, "test_others_never_see_half_a_change"),
    (Careless, "test_many_who_count_at_once_lose_nothing"),
    (Gossip, "test_what_a_message_says_changes_neither_sender_nor_addressee"),
]


def suite_over(kind: type[MemoryTransport]) -> TransportContract:
    class Suite(TransportContract):
        def make(self, count: int) -> list[Transport]:
            store = MemoryStore()
            return [kind(self.context(n), store) for n in range(count)]

    return Suite()


@pytest.mark.anyio
@pytest.mark.parametrize(("kind", "name"), WRONG, ids=lambda part: getattr(part, "__name__", part))
async def test_the_suite_finds_what_is_wrong(kind: type[MemoryTransport], name: str) -> None:
    found: tuple[type[BaseException], ...] = (AssertionError, pytest.fail.Exception, ValueError)
    with pytest.raises((*found, ForgeError, BaseExceptionGroup)):
        await getattr(suite_over(kind), name)()


@pytest.mark.anyio
async def test_the_suite_finds_a_failed_rule_that_writes() -> None:
    suite = suite_over(WritesAnyway)
    with pytest.raises(AssertionError):
        await suite.test_a_rule_that_raises_writes_nothing(HeldError("held"))


@pytest.mark.anyio
async def test_the_suite_finds_two_winners() -> None:
    suite = suite_over(Careless)
    with pytest.raises(AssertionError):
        await suite.test_of_many_who_write_the_same_at_once_one_wins(True)


def test_the_suite_has_no_way_to_skip() -> None:
    text = Path(contract.__file__).read_text("utf-8")
    assert not any(word in text for word in ("skipif", "pytest.skip", "xfail", "importorskip"))
