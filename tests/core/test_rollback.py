"""What a branch that was set back has lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core import rollback
from forge_collab.core.change import Versioned
from forge_collab.core.records import Record, encode
from forge_collab.testing.memory import MemorySnapshot

KEYS = ["leases/claim:T1", "leases/claim:T2", "tasks/T1", "participants/a", "meta"]
revs = st.dictionaries(st.sampled_from(KEYS), st.integers(0, 3))


def snapshot(records: dict[str, int]) -> MemorySnapshot:
    return MemorySnapshot(
        {key: Versioned(encode(Record(rev=rev)), f"{key}{rev}") for key, rev in records.items()}
    )


@given(revs, revs)
def test_a_lease_or_task_that_is_gone_or_older_is_lost_and_nothing_else(
    before: dict[str, int], after: dict[str, int]
) -> None:
    kept = ("leases/", "tasks/")
    expected = [k for k in sorted(before) if k.startswith(kept) and after.get(k, -1) < before[k]]
    assert rollback.lost(snapshot(before), snapshot(after)) == expected


def test_a_record_that_cannot_be_read_is_not_called_lost() -> None:
    broken = MemorySnapshot({"tasks/T1": Versioned(b"<<<<<<<\n", "x")})
    assert rollback.lost(snapshot({"tasks/T1": 2}), broken) == []
    assert rollback.lost(broken, snapshot({"tasks/T1": 1})) == []
