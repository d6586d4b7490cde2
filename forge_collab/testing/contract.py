"""The contract suite: what every transport has to pass.

A test module subclasses `TransportContract` and says how clients are made::

    class TestMine(TransportContract):
        @pytest.fixture(autouse=True)
        def other_side(self, tmp_path):
            self.server = Server(tmp_path)

        def make(self, count):
            return [MyTransport(self.context(n), self.server) for n in range(count)]

Needs pytest with anyio's plug-in (it comes with anyio). The tests run on asyncio; a subclass
that overrides the fixture `anyio_backend` runs them elsewhere too. Nothing here skips itself:
what a transport can't do is a failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, TypeVar

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream

from forge_collab.core import keys, session
from forge_collab.core.change import ABSENT, Absent, Change, Snapshot, Urgency, View
from forge_collab.core.errors import ConflictError, HeldError, UnavailableError
from forge_collab.core.records import MESSAGES_KEPT, Message, decode_lines
from forge_collab.transport import Context, Received, Transport

T = TypeVar("T")
COUNTER = "shared/counter"
ODD_KEYS = (
    "meta",
    "leases/claim:T.1-x_y",
    "leases/consolidation",
    "tasks/__proto__",
    "tasks/constructor",
    "tasks/Aufgabe Ümlaut/ß",
    "tasks/日本語-🦊",
    "tasks/100%25 a+b&c=d?e#f",
    "tasks/T1.json",
    "tasks/CON",
    "tasks/-rf",
    "tasks/ .\\'\"$(x)`*",
    "messages/someone",
    "audit/0123456789abcdef/1",
    "shared/flags/F1",
    "shared/flags/ä:1.md",
)


def version(transport: Transport, key: str) -> str | Absent:
    """The version of `key` in the snapshot of `transport`."""
    found = transport.snapshot.get(key)
    return ABSENT if found is ABSENT else found.version


def value(snapshot: Snapshot, key: str) -> bytes | None:
    """The bytes under `key` in `snapshot`, or None."""
    found = snapshot.get(key)
    return None if found is ABSENT else found.value


def count_up(view: View) -> int:
    """A rule: the number under `COUNTER`, one higher."""
    before = view.get(COUNTER)
    number = 1 if before is ABSENT else int(before) + 1
    view.put(COUNTER, str(number).encode())
    return number


async def outcomes(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | Exception]:
    """What each of `calls`, all made at once, returned or raised."""
    results: dict[int, T | Exception] = {}

    async def run(index: int, call: Callable[[], Awaitable[T]]) -> None:
        try:
            results[index] = await call()
        except Exception as error:
            results[index] = error

    async with anyio.create_task_group() as tasks:
        for index, call in enumerate(calls):
            tasks.start_soon(run, index, call)
    return [results[index] for index in range(len(calls))]


class TransportContract(ABC):
    """Subclass, provide `make`, and let pytest collect the subclass."""

    pytestmark = pytest.mark.anyio
    writers: ClassVar[int] = 4
    rounds: ClassVar[int] = 4
    patience_seconds: ClassVar[float] = 30.0

    @pytest.fixture
    def anyio_backend(self) -> Any:
        """The event loop that the tests run on."""
        return "asyncio"

    @abstractmethod
    def make(self, count: int) -> list[Transport]:
        """`count` clients of one new session, not yet connected; client n has `context(n)`.

        Called once in each test.
        """

    def context(self, number: int, **more: Any) -> Context:
        """What client `number` is made with: instance ``client-N``, handle ``person-N``."""
        return Context(instance=f"client-{number}", handle=f"person-{number}", **more)

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncIterator[list[Transport]]:
        """`count` connected clients of one new session, closed in reverse order."""
        with anyio.fail_after(self.patience_seconds):
            async with AsyncExitStack() as stack:
                made = self.make(count)
                for client in made:
                    await stack.enter_async_context(client)
                yield made

    # One record

    async def test_an_unknown_key_is_absent(self) -> None:
        async with self.clients(1) as [client]:
            assert await client.read("tasks/nobody-wrote-this") is ABSENT
            assert await client.list("tasks/") == []

    async def test_what_was_written_is_read_back_at_once(self) -> None:
        async with self.clients(1) as [client]:
            await client.cas("tasks/T1", ABSENT, b"one")
            found = await client.read("tasks/T1")
            assert found is not ABSENT
            assert found.value == b"one"
            assert await client.list("") == ["tasks/T1"]

    async def test_others_see_it_after_a_refresh(self) -> None:
        async with self.clients(2) as [writer, reader]:
            await writer.cas("tasks/T1", ABSENT, b"one")
            await reader.refresh()
            assert await reader.read("tasks/T1") == await writer.read("tasks/T1") != ABSENT

    async def test_equal_versions_mean_equal_bytes(self) -> None:
        async with self.clients(2) as [writer, reader]:
            bytes_of: dict[str, bytes] = {}
            for text in (b"one", b"two", b"one", b"", b"three"):
                await writer.cas("tasks/T1", version(writer, "tasks/T1"), text)
                await reader.refresh()
                for client in (writer, reader):
                    found = await client.read("tasks/T1")
                    assert found is not ABSENT
                    assert bytes_of.setdefault(found.version, text) == found.value == text

    async def test_a_version_stays_while_other_keys_change(self) -> None:
        async with self.clients(2) as [writer, reader]:
            await writer.cas("tasks/T1", ABSENT, b"one")
            before = version(writer, "tasks/T1")
            await writer.cas("tasks/T2", ABSENT, b"two")
            await reader.refresh()
            assert before == version(writer, "tasks/T1") == version(reader, "tasks/T1")

    async def test_creating_what_exists_is_a_conflict_that_says_what_is_there(self) -> None:
        async with self.clients(2) as [first, second]:
            await first.cas("tasks/T1", ABSENT, b"first")
            with pytest.raises(ConflictError) as caught:
                await second.cas("tasks/T1", ABSENT, b"second")
            assert caught.value.key == "tasks/T1"
            assert caught.value.current == b"first"
            assert value(second.snapshot, "tasks/T1") == b"first"

    async def test_an_old_version_is_a_conflict_that_says_what_is_there(self) -> None:
        async with self.clients(2) as [first, second]:
            await first.cas("tasks/T1", ABSENT, b"old")
            await second.refresh()
            old = version(second, "tasks/T1")
            await first.cas("tasks/T1", old, b"new")
            for attempt in (second.cas("tasks/T1", old, b"mine"), second.delete("tasks/T1", old)):
                with pytest.raises(ConflictError) as caught:
                    await attempt
                assert caught.value.current == b"new"
            assert value(second.snapshot, "tasks/T1") == b"new"

    async def test_a_version_of_what_is_gone_is_a_conflict_with_nothing(self) -> None:
        async with self.clients(2) as [first, second]:
            await first.cas("tasks/T1", ABSENT, b"old")
            await second.refresh()
            old = version(second, "tasks/T1")
            await first.delete("tasks/T1", old)
            with pytest.raises(ConflictError) as caught:
                await second.cas("tasks/T1", old, b"mine")
            assert caught.value.current is ABSENT

    async def test_a_deleted_record_is_gone_for_all_and_may_come_again(self) -> None:
        async with self.clients(2) as [first, second]:
            await first.cas("tasks/T1", ABSENT, b"one")
            await first.delete("tasks/T1", version(first, "tasks/T1"))
            await second.refresh()
            for client in (first, second):
                assert await client.read("tasks/T1") is ABSENT
                assert await client.list("tasks/") == []
            await second.cas("tasks/T1", ABSENT, b"again")
            assert value(second.snapshot, "tasks/T1") == b"again"

    async def test_deleting_what_must_not_exist_leaves_nothing(self) -> None:
        async with self.clients(1) as [client]:
            await client.delete("tasks/T1", ABSENT)
            assert await client.list("") == []

    async def test_list_gives_the_keys_with_a_prefix_sorted(self) -> None:
        wanted = ["tasks/T1", "tasks/T10", "tasks/T2", "tasks/a/b"]

        def rule(view: View) -> None:
            for key in (*wanted[::-1], "tasksforce", "leases/claim:T1"):
                view.put(key, b"x")

        async with self.clients(2) as [writer, reader]:
            await writer.commit(Change(rule, "several"))
            await reader.refresh()
            for client in (writer, reader):
                assert await client.list("tasks/") == wanted
                assert await client.list("tasks/T1") == ["tasks/T1", "tasks/T10"]
                assert await client.list("no/such") == []

    @pytest.mark.parametrize("key", ODD_KEYS)
    async def test_a_key_may_have_odd_characters(self, key: str) -> None:
        async with self.clients(2) as [writer, reader]:
            await writer.cas(key, ABSENT, b"odd")
            await reader.refresh()
            assert value(reader.snapshot, key) == b"odd"
            assert await reader.list("") == [key]
            await reader.delete(key, version(reader, key))
            assert await reader.list("") == []

    async def test_keys_that_look_alike_are_different_keys(self) -> None:
        alike = ["tasks/a", "tasks/A", "tasks/a%2F", "tasks/a b", "tasks/a+b", "tasks/a%20b"]
        alike += ["tasks/é", "tasks/e\u0301", "tasks/a.json", "tasks/a.jsonl"]

        def rule(view: View) -> None:
            for key in alike:
                view.put(key, key.encode())

        async with self.clients(2) as [writer, reader]:
            await writer.commit(Change(rule, "alike"))
            await reader.refresh()
            assert {key: value(reader.snapshot, key) for key in await reader.list("")} == {
                key: key.encode() for key in alike
            }

    async def test_any_bytes_come_back_as_they_were(self) -> None:
        samples = (b"", b"\n", b"\r\n\r\n", b"\0", bytes(range(256)), b"\xff" * 3, b"x" * 2_000_000)
        async with self.clients(2) as [writer, reader]:
            for number, sample in enumerate(samples):
                await writer.cas(f"tasks/T{number}", ABSENT, sample)
            await reader.refresh()
            for number, sample in enumerate(samples):
                assert value(writer.snapshot, f"tasks/T{number}") == sample
                assert value(reader.snapshot, f"tasks/T{number}") == sample

    # Changes

    async def test_a_change_gives_its_rules_answer(self) -> None:
        async with self.clients(1) as [client]:
            assert await client.commit(Change(count_up, "count")) == 1
            assert await client.commit(Change(count_up, "count")) == 2

    async def test_a_change_of_several_keys_takes_effect_as_a_whole(self) -> None:
        def rule(view: View) -> None:
            view.put("tasks/T1", b"one")
            view.put("shared/flags/F1", b"flag")
            view.drop("leases/claim:T1")

        async with self.clients(2) as [writer, reader]:
            await writer.cas("leases/claim:T1", ABSENT, b"lease")
            await writer.commit(Change(rule, "several"))
            await reader.refresh()
            assert await reader.list("") == ["shared/flags/F1", "tasks/T1"]

    async def test_others_never_see_half_a_change(self) -> None:
        def rule(view: View) -> None:
            number = count_up(view)
            view.put("tasks/T1", str(number).encode())

        async with self.clients(2) as [writer, reader]:
            await writer.commit(Change(rule, "both"))
            async with anyio.create_task_group() as tasks:

                async def write() -> None:
                    for _ in range(self.rounds):
                        await writer.commit(Change(rule, "both"))
                    tasks.cancel_scope.cancel()

                tasks.start_soon(write)
                while True:
                    await reader.refresh()
                    seen = reader.snapshot
                    assert value(seen, "tasks/T1") == value(seen, COUNTER) is not None

    @pytest.mark.parametrize(
        "error", [HeldError("held"), ConflictError("tasks/T1", ABSENT), ValueError("a bug")]
    )
    async def test_a_rule_that_raises_writes_nothing(self, error: Exception) -> None:
        def rule(view: View) -> None:
            view.put("tasks/T1", b"half")
            raise error

        async with self.clients(1) as [client]:
            with pytest.raises(type(error)):
                await client.commit(Change(rule, "fails"))
            await client.refresh()
            assert await client.list("") == []
            await client.cas("tasks/T2", ABSENT, b"goes on")

    async def test_a_rule_that_writes_nothing_answers(self) -> None:
        async with self.clients(2) as [writer, reader]:
            await writer.cas("tasks/T1", ABSENT, b"one")
            rule: Change[list[str]] = Change(lambda view: view.keys(""), "look")
            assert await reader.commit(rule) == ["tasks/T1"]

    async def test_a_rule_sees_what_it_wrote_itself(self) -> None:
        def rule(view: View) -> tuple[object, list[str]]:
            view.put("tasks/T1", b"new")
            return view.get("tasks/T1"), view.keys("tasks/")

        async with self.clients(1) as [client]:
            assert await client.commit(Change(rule, "own")) == (b"new", ["tasks/T1"])

    async def test_a_no_is_decided_on_a_snapshot_read_after_the_call(self) -> None:
        def rule(view: View) -> bytes:
            there = view.get("tasks/T1")
            if there is ABSENT:
                raise HeldError("decided on a stale replica")
            return there

        async with self.clients(2) as [ahead, behind]:
            await behind.refresh()
            await ahead.cas("tasks/T1", ABSENT, b"one")
            assert await behind.commit(Change(rule, "look")) == b"one"

    async def test_a_yes_on_an_old_snapshot_is_asked_again_on_the_newer_one(self) -> None:
        def rule(view: View) -> str:
            if view.get("tasks/T1") is not ABSENT:
                raise HeldError("somebody came first")
            view.put("tasks/T2", b"mine")
            return "mine"

        async with self.clients(2) as [ahead, behind]:
            await behind.refresh()
            await ahead.cas("tasks/T1", ABSENT, b"first")
            with pytest.raises(HeldError):
                await behind.commit(Change(rule, "claim"))
            await ahead.refresh()
            assert await ahead.list("") == ["tasks/T1"]

    async def test_a_change_made_on_an_old_snapshot_keeps_what_came_first(self) -> None:
        async with self.clients(2) as [ahead, behind]:
            await behind.refresh()
            await ahead.commit(Change(count_up, "count"))
            assert await behind.commit(Change(count_up, "count")) == 2
            await ahead.refresh()
            assert value(ahead.snapshot, COUNTER) == b"2"

    @pytest.mark.parametrize("is_new", [True, False], ids=["absent", "a version"])
    async def test_of_many_who_write_the_same_at_once_one_wins(self, is_new: bool) -> None:
        async with self.clients(self.writers) as clients:
            if not is_new:
                await clients[0].cas("tasks/T1", ABSENT, b"before")
            for client in clients:
                await client.refresh()

            def claim(client: Transport) -> Callable[[], Awaitable[None]]:
                expected = version(client, "tasks/T1")
                return lambda: client.cas("tasks/T1", expected, b"the same")

            results = await outcomes([claim(client) for client in clients])
            lost = [r for r in results if isinstance(r, ConflictError)]
            assert results.count(None) == 1
            assert len(lost) == len(clients) - 1
            assert all(error.current == b"the same" for error in lost)

    async def test_many_who_count_at_once_lose_nothing(self) -> None:
        async with self.clients(self.writers) as clients:

            def count(client: Transport) -> Callable[[], Awaitable[int]]:
                return lambda: client.commit(Change(count_up, "count"))

            calls = [count(client) for client in clients for _ in range(self.rounds)]
            results = await outcomes(calls)
            await clients[0].refresh()
            assert sorted(map(str, results)) == sorted(map(str, range(1, len(calls) + 1)))
            assert value(clients[0].snapshot, COUNTER) == str(len(calls)).encode()

    async def test_changes_of_different_keys_at_once_all_take_effect(self) -> None:
        async with self.clients(self.writers) as clients:

            def write(client: Transport, key: str) -> Callable[[], Awaitable[None]]:
                return lambda: client.cas(key, ABSENT, key.encode())

            wanted = sorted(f"tasks/T{n}-{m}" for n in range(len(clients)) for m in range(5))
            calls = [write(clients[int(key[7])], key) for key in wanted]
            assert await outcomes(calls) == [None] * len(wanted)
            await clients[0].refresh()
            assert await clients[0].list("tasks/") == wanted

    @pytest.mark.parametrize("urgency", [Urgency.AHEAD, Urgency.NOW])
    async def test_how_urgent_a_change_is_changes_nothing_else(self, urgency: Urgency) -> None:
        async with self.clients(1) as [client]:
            assert await client.commit(Change(count_up, "count", urgency)) == 1
            assert value(client.snapshot, COUNTER) == b"1"

    async def test_what_rides_with_another_change_takes_effect_too(self) -> None:
        async with self.clients(1) as [client], anyio.create_task_group() as tasks:
            ride = Change(count_up, "count", Urgency.RIDE)
            tasks.start_soon(client.commit, ride)
            await anyio.wait_all_tasks_blocked()
            await client.cas("tasks/T1", ABSENT, b"now")
            await client.refresh()
            assert await client.list("") == [COUNTER, "tasks/T1"]

    # Snapshots

    async def test_a_snapshot_never_changes(self) -> None:
        async with self.clients(1) as [client]:
            empty = client.snapshot
            await client.cas("tasks/T1", ABSENT, b"one")
            full = client.snapshot
            await client.delete("tasks/T1", version(client, "tasks/T1"))
            assert list(empty.keys("")) == [] == list(client.snapshot.keys(""))
            assert value(full, "tasks/T1") == b"one"

    async def test_a_new_snapshot_wakes_who_waits_for_it(self) -> None:
        async with self.clients(2) as [writer, reader]:
            woken: list[Snapshot] = []
            seen = reader.snapshot

            async def wait() -> None:
                woken.append(await reader.wait_moved(seen))

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                assert woken == []
                await writer.cas("tasks/T1", ABSENT, b"one")
                await reader.refresh()
            assert [value(snapshot, "tasks/T1") for snapshot in woken] == [b"one"] * 3

    async def test_who_waits_for_what_is_here_already_does_not_wait(self) -> None:
        async with self.clients(1) as [client]:
            seen = client.snapshot
            await client.cas("tasks/T1", ABSENT, b"one")
            assert await client.wait_moved(seen) is client.snapshot

    async def test_a_connected_client_knows_when_it_last_looked(self) -> None:
        async with self.clients(1) as [client]:
            first = client.last_sync
            await client.refresh()
            assert first is not None
            assert client.last_sync is not None
            assert first <= client.last_sync <= client.context.clock.now()
            assert client.trouble is None

    # Messages

    async def test_a_message_reaches_all_others_once(self) -> None:
        async with self.clients(3) as clients:
            inboxes = [client.subscribe() for client in clients]
            await clients[0].publish("hello", {"n": 1}, soon=True)
            for client in (*clients, *clients):
                await client.refresh()
            own, *others = [await kept_in(inbox) for inbox in inboxes]
            assert own == []
            for [received] in others:
                assert received.sender == "client-0"
                assert received.message.event == "hello"
                assert received.message.data == {"n": 1}
            close(*inboxes)

    async def test_each_subscription_has_every_message_for_itself(self) -> None:
        async with self.clients(2) as [sender, reader]:
            with reader.subscribe() as first, reader.subscribe() as second:
                await sender.publish("hello", {}, soon=True)
                await reader.refresh()
                assert len(await kept_in(first)) == len(await kept_in(second)) == 1

    @pytest.mark.parametrize("to", ["client-1", "person-1"], ids=["instance", "handle"])
    async def test_a_message_to_one_reaches_that_one_alone(self, to: str) -> None:
        async with self.clients(3) as [sender, addressee, bystander]:
            with addressee.subscribe() as wanted, bystander.subscribe() as other:
                await sender.send_targeted(to, "psst", {}, soon=True)
                await addressee.refresh()
                await bystander.refresh()
                [received] = await kept_in(wanted)
                assert (received.sender, received.message.to) == ("client-0", to)
                assert await kept_in(other) == []

    async def test_what_a_message_says_changes_neither_sender_nor_addressee(self) -> None:
        forged = {"to": "client-2", "sender": "client-2", "from": "client-2", "clientId": "x"}
        async with self.clients(3) as [sender, addressee, named]:
            with addressee.subscribe() as wanted, named.subscribe() as other:
                await sender.send_targeted("client-1", "forged", forged, soon=True)
                await addressee.refresh()
                await named.refresh()
                [received] = await kept_in(wanted)
                assert received.sender == "client-0"
                assert received.message.data == forged
                assert await kept_in(other) == []

    async def test_a_subscription_begins_now_or_after_what_was_seen(self) -> None:
        async with self.clients(2) as [sender, reader]:
            for number in (1, 2, 3):
                await sender.publish("count", {"n": number}, soon=True)
            await reader.refresh()
            now, all_kept = reader.subscribe(), reader.subscribe({})
            later = reader.subscribe({"client-0": 1})
            assert await numbers_in(now) == []
            assert await numbers_in(all_kept) == [1, 2, 3]
            assert await numbers_in(later) == [2, 3]
            await sender.publish("count", {"n": 4}, soon=True)
            await reader.refresh()
            for inbox in (now, all_kept, later):
                assert await numbers_in(inbox) == [4]
            close(now, all_kept, later)

    async def test_messages_come_in_the_order_they_were_sent(self) -> None:
        async with self.clients(2) as [sender, reader]:
            with reader.subscribe() as inbox:
                for number in range(4):
                    await sender.publish("count", {"n": number}, soon=True)
                    await reader.refresh()
                assert await numbers_in(inbox) == [0, 1, 2, 3]

    async def test_the_last_200_messages_are_kept(self) -> None:
        def rule(view: View) -> None:
            for number in range(MESSAGES_KEPT):
                session.post(view, "client-0", "count", {"n": number}, to=None, ts="T")

        async with self.clients(2) as [sender, reader]:
            await sender.commit(Change(rule, "many"))
            for number in range(MESSAGES_KEPT, MESSAGES_KEPT + 3):
                await sender.publish("count", {"n": number}, soon=True)
            await reader.refresh()
            with reader.subscribe({}) as inbox:
                assert await numbers_in(inbox) == list(range(3, MESSAGES_KEPT + 3))
            ring = value(reader.snapshot, keys.MESSAGES + "client-0") or b""
            assert decode_lines(Message, ring, "ring")[-1].seq == MESSAGES_KEPT + 3

    async def test_an_unreadable_ring_silences_its_owner_alone(self) -> None:
        async with self.clients(3) as [sender, broken, reader]:
            await broken.cas(keys.MESSAGES + "client-1", ABSENT, b"<<<<<<< HEAD\n")
            with reader.subscribe() as inbox:
                await sender.publish("count", {"n": 1}, soon=True)
                await reader.refresh()
                assert await numbers_in(inbox) == [1]

    # Life

    async def test_closing_twice_is_nothing(self) -> None:
        async with self.clients(1) as [client]:
            await client.aclose()
            await client.aclose()

    async def test_closing_without_having_connected_is_nothing(self) -> None:
        [client] = self.make(1)
        await client.aclose()

    async def test_a_change_before_connecting_or_after_closing_is_unavailable(self) -> None:
        [client] = self.make(1)
        with pytest.raises(UnavailableError):
            await client.cas("tasks/T1", ABSENT, b"early")
        async with client:
            await client.cas("tasks/T1", ABSENT, b"in time")
        with pytest.raises(UnavailableError):
            await client.cas("tasks/T2", ABSENT, b"late")

    async def test_what_was_written_outlives_its_writer(self) -> None:
        async with self.clients(2) as [stays, leaves]:
            await leaves.cas("tasks/T1", ABSENT, b"left behind")
            await leaves.aclose()
            await stays.refresh()
            assert value(stays.snapshot, "tasks/T1") == b"left behind"
            await stays.cas("tasks/T1", version(stays, "tasks/T1"), b"taken on")

    async def test_a_subscription_ends_when_its_client_closes(self) -> None:
        async with self.clients(1) as [client]:
            with client.subscribe() as inbox:
                await client.aclose()
                assert await kept_in(inbox) == []
                with pytest.raises(anyio.EndOfStream):
                    await inbox.receive()


def close(*inboxes: MemoryObjectReceiveStream[Received]) -> None:
    """Have no more use for `inboxes`."""
    for inbox in inboxes:
        inbox.close()


async def kept_in(inbox: MemoryObjectReceiveStream[Received]) -> list[Received]:
    """The messages in `inbox`, once nothing more comes."""
    found: list[Received] = []
    with anyio.move_on_after(0.05):
        async for received in inbox:
            found.append(received)
    return found


async def numbers_in(inbox: MemoryObjectReceiveStream[Received]) -> list[int]:
    """The numbers that the messages in `inbox` carry."""
    return [received.message.data["n"] for received in await kept_in(inbox)]
