from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge_collab.core import keys
from forge_collab.core.errors import UsageError

FOLDERS = (
    keys.LEASES,
    keys.PARTICIPANTS,
    keys.TASKS,
    keys.MESSAGES,
    keys.AUDIT,
    keys.SHARED,
    keys.SHARED_TASKS,
    "",
)
PARTS = st.text(st.characters(exclude_characters="/", exclude_categories=("Cs",)), min_size=1)
KEYS = st.builds(
    lambda folder, parts: folder + "/".join(parts),
    st.sampled_from(FOLDERS),
    st.lists(PARTS, min_size=1, max_size=3),
)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (keys.META, "meta.json"),
        (keys.claim("T001"), "leases/claim%3AT001.json"),
        ("participants/0123456789abcdef", "participants/0123456789abcdef.json"),
        ("tasks/T001", "tasks/T001.json"),
        ("messages/0123456789abcdef", "messages/0123456789abcdef.jsonl"),
        ("audit/0123456789abcdef/1", "audit/0123456789abcdef/1.jsonl"),
        ("shared/tasks/T001.yaml", "shared/tasks/T001.yaml"),
        ("shared/flags/F 1.json", "shared/flags/F%201.json"),
        ("leases/é", "leases/%C3%A9.json"),
    ],
)
def test_each_kind_of_key_has_its_file(key: str, path: str) -> None:
    assert keys.path_of(key) == path
    assert keys.key_of(path) == key


@given(KEYS)
@example("shared/a%2Fb")
@example("leases/a.json")
@example("messages/a.jsonl")
@example("shared")
@example("audit")
def test_a_key_comes_back_from_its_file(key: str) -> None:
    assert keys.key_of(keys.path_of(key)) == key


@given(KEYS, KEYS)
@example("leases/a:b", "leases/a%3Ab")
@example("leases/a/b", "leases/a%2Fb")
@example("messages", "messages/x")
def test_no_two_keys_share_a_file(one: str, other: str) -> None:
    assert (keys.path_of(one) == keys.path_of(other)) == (one == other)


@given(KEYS)
@example("shared/a~b")
def test_a_file_name_has_plain_characters_only(key: str) -> None:
    for part in keys.path_of(key).split("/"):
        assert re.fullmatch(r"[A-Za-z0-9_.%-]*", part), part


def test_a_lone_surrogate_is_refused_because_no_file_name_can_have_it() -> None:
    with pytest.raises(UsageError, match="isn't text"):
        keys.path_of("leases/\ud800")


@pytest.mark.parametrize("key", ["", "leases/", "/x", "shared//x", "a/"])
def test_a_key_has_no_empty_part(key: str) -> None:
    with pytest.raises(UsageError):
        keys.path_of(key)


@pytest.mark.parametrize(
    "key", ["shared/../x", "shared/./x", "leases/../../x", "tasks/..", "shared/.git/config"]
)
def test_a_file_never_climbs_out_of_its_folder(key: str) -> None:
    assert not {".", "..", ".git"} & set(keys.path_of(key).split("/"))
    assert keys.key_of(keys.path_of(key)) == key


@given(st.text("abc/.%3A2Fjsonl~ :", max_size=16))
def test_a_file_that_no_key_has_is_nobodys(path: str) -> None:
    key = keys.key_of(path)
    assert key is None or keys.path_of(key) == path


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "leases/claim:T1.json",
        "leases/claim%3aT1.json",
        "leases/%61.json",
        "leases/a.jsonl",
        "messages/a.json",
        "leases/%FF.json",
        "leases/.json",
        "shared//x",
        "",
        "meta",
    ],
)
def test_another_spelling_of_a_file_name_is_no_key(path: str) -> None:
    assert keys.key_of(path) is None


def test_the_task_of_a_claim_and_the_name_of_a_lease_are_in_its_key() -> None:
    assert keys.claimed_task(keys.claim("T001")) == "T001"
    assert keys.claimed_task("leases/consolidate") is None
    assert keys.lease_name(keys.claim("T001")) == "claim:T001"
    assert keys.lease_name("leases/consolidate") == "consolidate"
