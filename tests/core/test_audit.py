from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from forge_collab.core import audit, keys
from forge_collab.core.change import ABSENT, View
from forge_collab.core.records import (
    AUDIT_SEGMENT_LINES,
    AuditEntry,
    Claimant,
    decode_lines,
    encode,
)
from forge_collab.testing.memory import MemoryStore

ADA = Claimant(handle="ada", instance="a" * 16, worker="w1")
BOB = Claimant(handle="bob", instance="b" * 16, worker="w1")
T1, T2 = keys.claim("T1"), keys.claim("T2")


def add(
    store: MemoryStore, who: Claimant = ADA, event: str = "note", **fields: object
) -> AuditEntry:
    view = View(store.snapshot)
    entry = audit.append(view, who, event, ts="t", nonce="n", **fields)  # type: ignore[arg-type]
    assert len(view.writes) == 1
    store.apply(view.writes)
    return entry


def segment(store: MemoryStore, number: int, who: Claimant = ADA) -> bytes:
    found = store.snapshot.get(f"audit/{who.instance}/{number}")
    return b"" if found is ABSENT else found.value


def entry(seq: int, who: Claimant = ADA) -> bytes:
    return encode(AuditEntry(seq=seq, ts="t", event="note", who=who, nonce="n"))


def test_the_first_line_opens_segment_one_with_seq_one() -> None:
    store = MemoryStore()
    written = add(store, text="hello", key=T1, fence=3)
    assert (written.seq, written.key, written.fence) == (1, "claim:T1", 3)
    assert decode_lines(AuditEntry, segment(store, 1), "") == (written,)


def test_a_segment_has_256_lines_and_then_the_next_begins() -> None:
    assert AUDIT_SEGMENT_LINES == 256
    store = MemoryStore()
    for _ in range(2 * 256 + 1):
        add(store)
    assert [segment(store, n).count(b"\n") for n in (1, 2, 3, 4)] == [256, 256, 1, 0]
    seqs = [e.seq for n in (1, 2, 3) for e in decode_lines(AuditEntry, segment(store, n), "")]
    assert seqs == list(range(1, 514))


def test_a_line_is_added_and_what_was_there_stays_byte_for_byte() -> None:
    store = MemoryStore()
    odd = entry(1).replace(b'"v":1', b'"v":1,"of_a_newer_forge":[1]')
    store.apply({f"audit/{ADA.instance}/1": odd})
    add(store)
    assert segment(store, 1).startswith(odd)
    assert segment(store, 1).count(b"\n") == 2


@settings(deadline=None)
@given(st.lists(st.sampled_from((ADA, BOB)), max_size=30))
def test_seq_strictly_rises_over_all_writers(writers: list[Claimant]) -> None:
    store = MemoryStore()
    seqs = [add(store, who).seq for who in writers]
    assert seqs == sorted(set(seqs))
    assert [e.seq for e in audit.history(store.snapshot)] == seqs


def test_two_lines_in_one_change_have_two_seqs() -> None:
    view = View(MemoryStore().snapshot)
    seqs = [audit.append(view, who, "e", ts="", nonce="n").seq for who in (ADA, BOB, ADA)]
    assert seqs == [1, 2, 3]


def test_segments_are_counted_as_numbers() -> None:
    store = MemoryStore()
    prefix = f"audit/{ADA.instance}/"
    store.apply({f"{prefix}{n}": entry(n) for n in (2, 9, 10)} | {f"{prefix}x": b"no segment\n"})
    assert add(store).seq == 11
    assert segment(store, 10).count(b"\n") == 2


BROKEN = (b"<<<<<<< HEAD\n", b"{}\n", b'{"seq":3', b"\xff\n")


def test_a_broken_last_line_opens_a_new_segment_and_is_never_written_over() -> None:
    for line in BROKEN:
        store = MemoryStore()
        before = entry(1) + entry(2) + line
        store.apply({f"audit/{ADA.instance}/1": before})
        add(store)
        assert segment(store, 1) == before
        assert segment(store, 2).count(b"\n") == 1


def test_a_segment_that_is_broken_altogether_is_never_written_over() -> None:
    for line in BROKEN:
        store = MemoryStore()
        store.apply({f"audit/{ADA.instance}/1": line})
        add(store)
        assert segment(store, 1) == line
        assert segment(store, 2).count(b"\n") == 1


def test_seq_rises_above_what_is_readable_before_a_broken_line() -> None:
    """A line that can't be read hides itself, not the numbers before it."""
    for line in BROKEN:
        for who in (ADA, BOB):
            store = MemoryStore()
            store.apply({f"audit/{ADA.instance}/1": entry(40) + entry(41) + line})
            assert add(store, who).seq == 42


def test_seq_rises_above_an_earlier_segment_when_the_last_is_broken_altogether() -> None:
    store = MemoryStore()
    prefix = f"audit/{ADA.instance}/"
    store.apply({f"{prefix}1": entry(41), f"{prefix}2": b"<<<<<<< HEAD\n"})
    assert add(store, BOB).seq == 42


def test_the_last_fence_is_that_of_the_workers_last_grant_of_the_key() -> None:
    store = MemoryStore()
    assert audit.last_fence(View(store.snapshot), ADA, T1) is None
    add(store, ADA, "claimed", key=T1, fence=1)
    add(store, ADA, "released", key=T1, fence=1)
    add(store, ADA, "claimed", key=T2, fence=7)
    add(store, BOB, "claimed", key=T1, fence=2)
    add(store, ADA, "taken_over", key=T1, fence=3)
    add(store, ADA, "note", key=T1, fence=9)
    view = View(store.snapshot)
    assert audit.last_fence(view, ADA, T1) == 3
    assert audit.last_fence(view, ADA, T2) == 7
    assert audit.last_fence(view, BOB, T1) == 2
    assert audit.last_fence(view, BOB, T2) is None


def test_the_last_fence_of_another_worker_of_the_clone_is_not_mine() -> None:
    store = MemoryStore()
    other = ADA.model_copy(update={"worker": "w2"})
    add(store, other, "claimed", key=T1, fence=1)
    assert audit.last_fence(View(store.snapshot), ADA, T1) is None
    assert audit.last_fence(View(store.snapshot), other, T1) == 1


def test_the_last_fence_is_found_in_an_older_segment_and_beside_broken_lines() -> None:
    store = MemoryStore()
    add(store, ADA, "claimed", key=T1, fence=5)
    store.apply({f"audit/{ADA.instance}/1": segment(store, 1) + b"<<<<<<< HEAD\n"})
    for _ in range(AUDIT_SEGMENT_LINES + 3):
        add(store)
    assert segment(store, 3)
    assert audit.last_fence(View(store.snapshot), ADA, T1) == 5


def test_the_history_is_everybodys_readable_lines_in_the_order_of_the_branch() -> None:
    store = MemoryStore()
    for who in (BOB, ADA, BOB):
        add(store, who)
    store.apply({f"audit/{BOB.instance}/1": segment(store, 1, BOB) + b"{}\n"})
    found = [(e.seq, e.who.handle) for e in audit.history(store.snapshot)]
    assert found == [(1, "bob"), (2, "ada"), (3, "bob")]
