from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core.change import View
from forge_collab.core.errors import BlockedError, CorruptError
from forge_collab.core.records import (
    VERSION,
    AuditEntry,
    Claimant,
    Document,
    Lease,
    Message,
    Meta,
    Participant,
    TaskRecord,
    check_writable,
    decode,
    decode_lines,
    encode,
    encode_lines,
    shown_lease,
)
from forge_collab.core.tasks import TaskStatus
from forge_collab.testing.memory import MemoryStore

ADA = Claimant(handle="ada", instance="a" * 16, worker="w1")
KNOWN: dict[type[Document], dict[str, Any]] = {
    Meta: {"session": "s", "repo": "r", "target": "main"},
    Lease: {"fence": 3, "nonce": "n", "claimant": ADA.model_dump(), "ttl_seconds": 7.5},
    Participant: {"handle": "ada", "run": "r1", "beat": 2, "renewals": {"leases/claim:T1": 4}},
    TaskRecord: {"uid": "u", "status": "merge_blocked", "waits_for": ["T2"]},
    AuditEntry: {"seq": 9, "ts": "t", "event": "e", "who": ADA.model_dump(), "nonce": "n"},
    Message: {"seq": 1, "event": "e", "data": {"a": [1, None]}, "ts": "t"},
}
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
UNKNOWN = st.dictionaries(TEXT.map("of a newer forge: {}".format), JSON, max_size=4)
KINDS = st.sampled_from(sorted(KNOWN, key=lambda kind: kind.__name__))


@given(kind=KINDS, unknown=UNKNOWN)
def test_a_round_trip_keeps_what_it_does_not_know(
    kind: type[Document], unknown: dict[str, Any]
) -> None:
    raw = {**KNOWN[kind], **unknown}
    document = decode(kind, json.dumps(raw).encode(), "x.json")
    written = json.loads(encode(document))
    assert {name: written[name] for name in raw} == raw
    assert decode(kind, encode(document), "x.json") == document


@given(kind=KINDS, unknown=UNKNOWN)
def test_a_change_of_some_fields_keeps_the_others(
    kind: type[Document], unknown: dict[str, Any]
) -> None:
    before = decode(kind, json.dumps({**KNOWN[kind], **unknown}).encode(), "x.json")
    after = json.loads(encode(before.but(v=VERSION)))
    assert after == json.loads(encode(before))


@pytest.mark.parametrize("name", ["but", "model_dump", "model_config", "self", "__class__", "rev_"])
def test_an_unknown_field_may_have_any_name(name: str) -> None:
    lease = decode(Lease, json.dumps({**KNOWN[Lease], name: [1]}).encode(), "x.json")
    assert json.loads(encode(lease.but(fence=4)))[name] == [1]


@given(kind=KINDS, unknown=UNKNOWN)
def test_a_document_is_one_line_of_sorted_json(
    kind: type[Document], unknown: dict[str, Any]
) -> None:
    line = encode(decode(kind, json.dumps({**unknown, **KNOWN[kind]}).encode(), "x.json"))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert list(json.loads(line)) == sorted(json.loads(line))


def test_the_same_document_has_the_same_bytes_in_whatever_order_it_was_read() -> None:
    turned = json.dumps(dict(reversed(KNOWN[Lease].items()))).encode()
    assert encode(decode(Lease, turned, "")) == encode(Lease.model_validate(KNOWN[Lease]))


@pytest.mark.parametrize("text", ["\ud800", "a\udc80b"])
def test_text_that_is_not_unicode_is_never_written_as_something_unreadable(text: str) -> None:
    """Undecodable bytes of an argument arrive as lone surrogates."""
    try:
        message = Message(seq=1, event="e", data={"text": text})
        entry = AuditEntry(seq=1, ts="t", event="e", who=ADA, nonce="n", text=text)
        lines = [encode(message), encode(entry)]
    except ValueError:
        return  # refused when it is made is as good
    decode(Message, lines[0], "x.jsonl")
    decode(AuditEntry, lines[1], "x.jsonl")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", 1),
        (b"{", 1),
        (b"[]", 1),
        (b"null", 1),
        (b'"text"', 1),
        (b"{}", 1),
        (b'{"fence": 1}', 1),
        (b'{"fence": 0, "nonce": "n"}', 1),
        (b'{"fence": -1, "nonce": "n"}', 1),
        (b'{"fence": 1.5, "nonce": "n"}', 1),
        (b'{"fence": "many", "nonce": "n"}', 1),
        (b'{"fence": 1, "nonce": null}', 1),
        (b'{"fence": 1, "nonce": "n", "claimant": {"handle": "ada"}}', 1),
        (b'{\n"fence": 1,\n"nonce": "n",,\n}', 3),
        (b'{"fence": 1,\n"nonce": "\xff"}', 2),
        (b'{"fence": 1, "nonce": "n"}{"fence": 1, "nonce": "n"}', 1),
        (b"\x00\x00\x00", 1),
        (b'\xef\xbb\xbf{"fence": 1, "nonce": "n"}', 1),
        (b"[" * 100_000, 1),
        (b'{"fence": ' + b"9" * 5000 + b', "nonce": "n"}', 1),
    ],
)
def test_what_can_not_be_read_is_said_with_its_file_and_line(data: bytes, line: int) -> None:
    with pytest.raises(CorruptError) as caught:
        decode(Lease, data, "leases/claim%3AT1.json")
    assert caught.value.data == {"path": "leases/claim%3AT1.json", "line": line}
    assert caught.value.hint == "forge doctor"
    assert f"leases/claim%3AT1.json:{line} " in caught.value.message


@given(st.binary(max_size=60))
def test_any_bytes_are_a_document_or_corrupt(data: bytes) -> None:
    for kind in KNOWN:
        with suppress(CorruptError):
            assert isinstance(decode(kind, data, "x"), kind)


def test_conflict_markers_are_corrupt_with_the_line_they_are_on() -> None:
    ours, theirs = encode(Lease(fence=1, nonce="a")), encode(Lease(fence=2, nonce="b"))
    merged = b"<<<<<<< HEAD\n" + ours + b"=======\n" + theirs + b">>>>>>> other\n"
    with pytest.raises(CorruptError) as caught:
        decode(Lease, merged, "leases/x.json")
    assert caught.value.data["line"] == 1
    line = encode(Message(seq=1, event="e"))
    with pytest.raises(CorruptError) as caught:
        decode_lines(Message, line + b"<<<<<<< HEAD\n" + line, "messages/x.jsonl")
    assert caught.value.data == {"path": "messages/x.jsonl", "line": 2}


def test_a_duration_that_is_no_number_is_corrupt() -> None:
    """Nothing is ever older than NaN seconds: such a lease would never expire."""
    for word in (b"NaN", b"Infinity", b"1e999", b'"soon"'):
        with pytest.raises(CorruptError):
            decode(Lease, b'{"fence": 1, "nonce": "n", "ttl_seconds": ' + word + b"}", "x")


def test_lines_come_back_in_their_order_and_empty_ones_do_not_count() -> None:
    messages = tuple(Message(seq=n, event=f"e{n}") for n in range(1, 4))
    data = encode_lines(messages)
    assert decode_lines(Message, data, "x") == messages
    assert decode_lines(Message, b"\n" + data.replace(b"\n", b"\n \n"), "x") == messages
    assert decode_lines(Message, b"", "x") == ()


def test_a_line_that_was_cut_off_is_corrupt_with_its_number() -> None:
    data = encode_lines((Message(seq=1, event="e"), Message(seq=2, event="e")))
    with pytest.raises(CorruptError) as caught:
        decode_lines(Message, data[:-9], "messages/x.jsonl")
    assert caught.value.data == {"path": "messages/x.jsonl", "line": 2}


def test_a_status_of_a_newer_forge_is_not_taken_for_another() -> None:
    with pytest.raises(CorruptError):
        decode(TaskRecord, b'{"uid": "u", "status": "sleeping"}', "tasks/T1.json")
    assert decode(TaskRecord, b'{"uid": "u"}', "x").status is TaskStatus.PENDING


def test_a_newer_schema_is_read_but_not_written_over() -> None:
    newer = decode(Lease, b'{"v": 2, "fence": 7, "nonce": "n"}', "leases/x.json")
    assert newer.fence == 7
    with pytest.raises(BlockedError) as caught:
        check_writable(newer, "leases/x.json")
    assert caught.value.data == {"path": "leases/x.json"}
    assert "schema 2" in caught.value.message
    check_writable(newer.but(v=VERSION), "leases/x.json")


def stored(data: bytes) -> View:
    store = MemoryStore()
    store.apply({"leases/x": data})
    return View(store.snapshot)


@pytest.mark.parametrize(
    ("data", "error"),
    [(b'{"v": 2, "fence": 7, "nonce": "n"}', BlockedError), (b"<<<<<<< HEAD\n", CorruptError)],
)
def test_no_rule_writes_over_what_it_can_not_judge(data: bytes, error: type[Exception]) -> None:
    view = stored(data)
    with pytest.raises(error):
        view.save("leases/x", Lease(fence=8, nonce="m"))
    assert view.writes == {}


def test_every_write_of_a_record_raises_its_rev() -> None:
    view = stored(encode(Lease(fence=7, nonce="n", rev=5)))
    for rev in (6, 7):
        view.save("leases/x", Lease(fence=7, nonce="n"))
        lease = view.document(Lease, "leases/x")
        assert lease is not None
        assert lease.rev == rev
    view.save("leases/y", Lease(fence=1, nonce="n", rev=99))
    first = view.document(Lease, "leases/y")
    assert first is not None
    assert first.rev == 1


def test_documents_can_not_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Lease(fence=1, nonce="n").fence = 2  # type: ignore[misc]


def test_a_shown_lease_has_the_promised_fields() -> None:
    lease = Lease(fence=3, nonce="n", claimant=ADA, ttl_seconds=30)
    assert shown_lease("claim:T1", lease, last_seen_seconds=1.26, takeover_in_seconds=28.74) == {
        "key": "claim:T1",
        "claimant": {"handle": "ada", "instance": "a" * 16, "worker": "w1"},
        "fence": 3,
        "ttl_seconds": 30,
        "last_seen_seconds": 1.3,
        "takeover_in_seconds": 28.7,
    }
    free = shown_lease("claim:T1", Lease(fence=3, nonce="n"))
    assert (free["claimant"], free["last_seen_seconds"]) == (None, None)
