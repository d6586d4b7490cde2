"""What one observer shows of a session: who is here, who holds what, what is open, what is not."""

from __future__ import annotations

from typing import Any

import pytest

from forge_collab.core import keys, overview
from forge_collab.core.board import Board
from forge_collab.core.change import ABSENT
from forge_collab.core.overview import Sightings
from forge_collab.core.records import Claimant, Document, Lease, Participant, TaskRecord, encode
from forge_collab.core.tasks import Task, TaskStatus
from forge_collab.testing.memory import MemoryStore

ADA, BEN, CY = "a" * 16, "b" * 16, "c" * 16
HANDLES = {ADA: "ada", BEN: "ben", CY: "cy"}
TTL = 120.0
BROKEN = b"<<<<<<< HEAD\n"
K1 = keys.claim("T1")


class Scene:
    """A store, a plan of three tasks, and an observer who looks when told to."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.tasks = [Task(id=f"T{number}", title="Do it") for number in (1, 2)]
        self.tasks.append(Task(id="T3", title="Later", depends_on=("T2",)))
        self.board = Board(self.tasks)
        self.sightings = Sightings()

    def put(self, key: str, document: Document) -> None:
        self.store.apply({key: encode(document)})

    def here(
        self, instance: str = ADA, renewals: dict[str, int] | None = None, **more: Any
    ) -> None:
        handle = more.pop("handle", None) or HANDLES[instance]
        record = Participant(handle=handle, run="run", renewals=renewals or {}, **more)
        self.put(keys.PARTICIPANTS + instance, record)

    def held(self, task: str = "T1", instance: str = ADA, **more: Any) -> None:
        who = Claimant(handle=HANDLES[instance], instance=instance, worker="w1")
        fields = {"fence": 1, "nonce": "n1", "claimant": who, "ttl_seconds": TTL, **more}
        self.put(keys.claim(task), Lease(**fields))

    def look(self, now: float) -> None:
        self.sightings.look(self.store.snapshot, now)

    def shown(self, now: float, *, is_watched: bool = True) -> dict[str, Any]:
        overview.apply_records(self.board, self.store.snapshot)
        sightings = self.sightings if is_watched else None
        return overview.overview(self.store.snapshot, self.board, sightings, now)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def ages(shown: dict[str, Any]) -> tuple[float | None, float | None]:
    (claim,) = shown["claims"]
    return claim["last_seen_seconds"], claim["takeover_in_seconds"]


def seen(shown: dict[str, Any]) -> dict[str, float | None]:
    return {p["handle"]: p["last_seen_seconds"] for p in shown["participants"]}


# Ages


def test_a_lease_ages_from_the_moment_its_version_was_first_seen(scene: Scene) -> None:
    scene.here()
    scene.held()
    for now in (100.0, 110.0, 130.0):
        scene.look(now)
    assert ages(scene.shown(140.0)) == (40.0, 80.0)


@pytest.mark.parametrize("change", [{"fence": 2}, {"nonce": "n2"}])
def test_another_version_of_a_lease_is_young_again(scene: Scene, change: dict[str, Any]) -> None:
    scene.held()
    scene.look(100.0)
    scene.held(**change)
    assert ages(scene.shown(150.0)) == (0.0, TTL)
    scene.look(150.0)
    assert ages(scene.shown(160.0)) == (10.0, TTL - 10)


def test_a_renewal_in_the_presence_of_its_holder_makes_a_lease_young_again(scene: Scene) -> None:
    scene.here(renewals={K1: 1})
    scene.held()
    scene.look(100.0)
    scene.here(renewals={K1: 2})
    scene.look(150.0)
    assert ages(scene.shown(160.0)) == (10.0, TTL - 10)


def test_the_presence_of_somebody_else_makes_no_lease_younger(scene: Scene) -> None:
    scene.here(renewals={K1: 1})
    scene.held()
    scene.look(100.0)
    scene.here(BEN, renewals={K1: 7})
    scene.look(150.0)
    assert ages(scene.shown(160.0)) == (60.0, TTL - 60)


def test_a_lease_that_was_gone_in_between_is_seen_anew(scene: Scene) -> None:
    scene.held()
    scene.look(100.0)
    before = scene.store.snapshot
    scene.store.apply({K1: ABSENT})
    scene.look(150.0)
    scene.sightings.look(before, 160.0)
    assert overview.claims(before, scene.sightings, 165.0)[1][0]["last_seen_seconds"] == 5.0


def test_a_participant_ages_until_its_record_changes(scene: Scene) -> None:
    scene.here(beat=1)
    scene.look(100.0)
    scene.look(120.0)
    assert seen(scene.shown(130.0)) == {"ada": 30.0}
    scene.here(beat=2)
    scene.look(140.0)
    assert seen(scene.shown(145.0)) == {"ada": 5.0}


def test_a_participant_who_was_gone_in_between_is_seen_anew(scene: Scene) -> None:
    scene.here()
    before = scene.store.snapshot
    scene.look(100.0)
    scene.store.apply({keys.PARTICIPANTS + ADA: ABSENT})
    scene.look(150.0)
    assert scene.sightings.participant_seconds(keys.PARTICIPANTS + ADA, 155.0) is None
    scene.sightings.look(before, 160.0)
    assert scene.sightings.participant_seconds(keys.PARTICIPANTS + ADA, 165.0) == 5.0


def test_a_lease_that_is_younger_than_the_presence_is_the_sign_of_life(scene: Scene) -> None:
    scene.here()
    scene.look(100.0)
    scene.held()
    scene.look(150.0)
    assert seen(scene.shown(160.0)) == {"ada": 10.0}


def test_a_participant_whom_this_observer_has_not_seen_has_no_age(scene: Scene) -> None:
    scene.look(100.0)
    scene.here()
    scene.held()
    assert seen(scene.shown(150.0)) == {"ada": None}


def test_without_sightings_no_age_is_known(scene: Scene) -> None:
    scene.here()
    scene.held()
    scene.look(100.0)
    shown = scene.shown(500.0, is_watched=False)
    assert ages(shown) == (None, None)
    assert seen(shown) == {"ada": None}
    assert shown["claimable"] == ["T2"]


def test_ages_are_shown_to_a_tenth_of_a_second(scene: Scene) -> None:
    scene.here()
    scene.held()
    scene.look(100.0)
    shown = scene.shown(133.333)
    assert (ages(shown), seen(shown)) == ((33.3, 86.7), {"ada": 33.3})


# What can be claimed


def test_what_nobody_holds_and_waits_for_nothing_is_claimable(scene: Scene) -> None:
    shown = scene.shown(0.0)
    assert shown["claimable"] == ["T1", "T2"]
    assert shown["blocked"] == [{"task": "T3", "waits_for": ["T2"]}]
    assert (shown["claims"], shown["participants"], shown["warnings"]) == ([], [], [])


def test_a_task_with_a_live_lease_is_not_claimable_and_with_a_lapsed_one_it_is(
    scene: Scene,
) -> None:
    scene.held()
    scene.look(100.0)
    assert scene.shown(100.0 + TTL - 1)["claimable"] == ["T2"]
    assert scene.shown(100.0 + TTL)["claimable"] == ["T1", "T2"]
    assert ages(scene.shown(100.0 + 2 * TTL)) == (2 * TTL, 0.0)


def test_a_lease_that_lapses_in_a_moment_is_not_claimable_yet(scene: Scene) -> None:
    """A claim at that moment would be told that somebody holds it."""
    scene.held()
    scene.look(100.0)
    assert scene.shown(100.0 + TTL - 0.04)["claimable"] == ["T2"]


def test_a_lease_that_was_given_back_is_no_claim_and_its_task_is_claimable(scene: Scene) -> None:
    scene.held(claimant=None)
    shown = scene.shown(0.0)
    assert (shown["claims"], shown["claimable"]) == ([], ["T1", "T2"])


def test_a_lease_of_something_else_than_a_task_is_shown_and_hides_no_task(scene: Scene) -> None:
    scene.here()
    who = Claimant(handle="ada", instance=ADA, worker="w1")
    scene.put(f"{keys.LEASES}landing", Lease(fence=1, nonce="n", claimant=who))
    shown = scene.shown(0.0)
    assert [claim["key"] for claim in shown["claims"]] == ["landing"]
    assert shown["participants"][0]["working_on"] == ["landing"]
    assert shown["claimable"] == ["T1", "T2"]


def test_a_claim_is_shown_with_who_has_it_and_under_which_fence(scene: Scene) -> None:
    scene.held(fence=7)
    scene.look(100.0)
    assert scene.shown(100.0)["claims"] == [
        {
            "key": "claim:T1",
            "claimant": {"handle": "ada", "instance": ADA, "worker": "w1"},
            "fence": 7,
            "ttl_seconds": TTL,
            "last_seen_seconds": 0.0,
            "takeover_in_seconds": TTL,
        }
    ]


def test_a_task_that_is_done_is_not_claimable_and_what_waited_for_it_is(scene: Scene) -> None:
    uid = scene.tasks[1].uid
    scene.put(keys.TASKS + "T2", TaskRecord(uid=uid, status=TaskStatus.DONE))
    assert scene.shown(0.0)["claimable"] == ["T1", "T3"]


def test_the_record_of_another_task_of_the_same_name_counts_for_nothing(scene: Scene) -> None:
    scene.put(keys.TASKS + "T2", TaskRecord(uid="another", status=TaskStatus.DONE))
    assert scene.shown(0.0)["claimable"] == ["T1", "T2"]


def test_a_status_whose_record_is_gone_is_pending_again(scene: Scene) -> None:
    uid = scene.tasks[0].uid
    scene.put(keys.TASKS + "T1", TaskRecord(uid=uid, status=TaskStatus.DONE))
    assert scene.shown(0.0)["claimable"] == ["T2"]
    scene.store.apply({keys.TASKS + "T1": ABSENT})
    assert scene.shown(0.0)["claimable"] == ["T1", "T2"]


# Who is here


def test_participants_are_sorted_by_handle_then_by_instance(scene: Scene) -> None:
    for instance, handle in ((CY, "ada"), (BEN, "zoe"), (ADA, "bob")):
        scene.here(instance, handle=handle)
    scene.here("0" * 16, handle="zoe")
    found = [(p["handle"], p["instance"]) for p in scene.shown(0.0)["participants"]]
    assert found == [("ada", CY), ("bob", ADA), ("zoe", "0" * 16), ("zoe", BEN)]


def test_a_participant_is_shown_with_what_that_clone_works_on(scene: Scene) -> None:
    scene.here(ADA)
    scene.here(BEN)
    scene.held("T1", BEN)
    scene.held("T2", BEN)
    found = {p["handle"]: p["working_on"] for p in scene.shown(0.0)["participants"]}
    assert found == {"ada": [], "ben": ["T1", "T2"]}


def test_two_people_under_one_handle_are_told(scene: Scene) -> None:
    scene.here(ADA, handle="sam", email_hash="1" * 16)
    scene.here(BEN, handle="sam", email_hash="2" * 16)
    (warning,) = scene.shown(0.0)["warnings"]
    assert "two people use the handle 'sam'" in warning
    assert "git config forge.handle" in warning


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"handle": "sam", "email_hash": "1"}, {"handle": "sam", "email_hash": "1"}),
        ({"handle": "sam", "email_hash": "1"}, {"handle": "sam", "email_hash": None}),
        ({"handle": "sam", "email_hash": "1"}, {"handle": "max", "email_hash": "2"}),
    ],
)
def test_two_clones_of_one_person_and_two_people_with_two_handles_are_no_warning(
    scene: Scene, first: dict[str, Any], second: dict[str, Any]
) -> None:
    scene.here(ADA, **first)
    scene.here(BEN, **second)
    assert scene.shown(0.0)["warnings"] == []


# What can't be read


@pytest.mark.parametrize(
    ("key", "path"), [(K1, "leases/claim%3AT1.json"), (keys.TASKS + "T1", "tasks/T1.json")]
)
def test_a_task_whose_lease_or_status_can_not_be_read_is_named_and_not_claimable(
    scene: Scene, key: str, path: str
) -> None:
    scene.store.apply({key: BROKEN})
    scene.look(0.0)
    shown = scene.shown(1000.0)
    assert shown["claimable"] == ["T2"]
    (warning,) = shown["warnings"]
    assert warning.startswith(f"{path}:1 ")


def test_a_task_of_which_both_can_not_be_read_is_warned_of_twice(scene: Scene) -> None:
    scene.store.apply({K1: BROKEN, keys.TASKS + "T1": BROKEN})
    warnings = scene.shown(0.0)["warnings"]
    assert sorted(w.split(":")[0] for w in warnings) == ["leases/claim%3AT1.json", "tasks/T1.json"]


def test_what_waits_for_a_task_whose_status_can_not_be_read_goes_on_waiting(scene: Scene) -> None:
    scene.store.apply({keys.TASKS + "T2": BROKEN})
    shown = scene.shown(0.0)
    assert shown["claimable"] == ["T1"]
    assert shown["blocked"] == [{"task": "T3", "waits_for": ["T2"]}]


def test_a_participant_that_can_not_be_read_is_a_warning_and_its_claim_stays(scene: Scene) -> None:
    scene.held()
    scene.here(BEN)
    scene.store.apply({keys.PARTICIPANTS + ADA: BROKEN})
    scene.look(100.0)
    shown = scene.shown(110.0)
    assert [p["handle"] for p in shown["participants"]] == ["ben"]
    assert shown["claimable"] == ["T2"]
    (warning,) = shown["warnings"]
    assert warning.startswith(f"participants/{ADA}.json:1 ")


def test_a_task_that_a_person_has_to_edit_is_a_warning_and_not_claimable(scene: Scene) -> None:
    scene.board = Board([Task(id="T1", title="Do it", depends_on=("T9",))])
    shown = scene.shown(0.0)
    assert shown["claimable"] == []
    assert len(shown["warnings"]) == 1
    assert "T9" in shown["warnings"][0]
