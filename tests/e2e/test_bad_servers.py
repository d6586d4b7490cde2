"""Servers whose hooks dislike a text, are slow, hold locks or hang; and that force nothing."""

from __future__ import annotations

from conftest import World, audit_of, refusal, set_hook, wait_until

DISLIKES_SECRETS = r"""
while read old new ref; do
  if git log -p --format= "$new" --not --all | grep -q SECRET; then
    echo 'secret found: take it out' >&2
    exit 1
  fi
done
"""
HANGS_ONCE = 'if mkdir "$(dirname "$0")/../once" 2>/dev/null; then exec sleep 30; fi'


def test_a_text_the_server_dislikes_is_refused_and_all_else_lands(world: World) -> None:
    ada = world.clone("ada", forge__heartbeat_seconds="0.5", forge__claim_ttl_seconds="5")
    ada.start()
    for task in ("T001", "T002", "T003"):
        assert ada.collaborate("claim", task).code == 0
    set_hook(world, "pre-receive", DISLIKES_SECRETS)
    texts = {"T001": "all is well", "T002": "the key is SECRET", "T003": "half of it"}
    notes = {
        task: ada.popen("collaborate", "note", task, text, "--json") for task, text in texts.items()
    }
    told = {task: note.communicate(timeout=60)[0] for task, note in notes.items()}
    codes = {task: note.returncode for task, note in notes.items()}
    assert codes == {"T001": 0, "T002": 7, "T003": 0}
    assert "secret found: take it out" in told["T002"]
    said = [entry["text"] for entry in audit_of(world) if entry["event"] == "note"]
    assert sorted(said) == ["all is well", "half of it"]

    error = refusal(ada, "collaborate", "note", "T001", "a SECRET", code=7, says=("secret found",))
    assert "secret found: take it out" in error["data"]["server"]
    [instance] = [p["instance"] for p in ada.collaborate("status").data["participants"]]
    path = f"participants/{instance}.json"
    beat = (world.record(path) or {})["beat"]
    wait_until(lambda: (world.record(path) or {})["beat"] > beat)
    assert ada.collaborate("status").data["warnings"] == []


def test_a_hook_that_is_slow_and_holds_the_lock_refuses_nothing(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    set_hook(world, "update", "sleep 0.4")
    claims = [clone.popen("collaborate", "claim", "T001", "--json") for clone in (ada, ben)]
    assert sorted(claim.wait(timeout=60) for claim in claims) == [0, 3]
    lease = world.lease("T001")
    assert lease is not None
    assert lease["fence"] == 1


def test_a_hook_that_hangs_is_given_up_and_the_claim_is_made(world: World) -> None:
    ada = world.clone("ada", forge__network_timeout_seconds="1")
    ada.start()
    set_hook(world, "pre-receive", HANGS_ONCE)
    claimed = ada.collaborate("claim", "T001")
    assert claimed.code == 0, claimed
    assert [entry["event"] for entry in audit_of(world)] == ["claimed"]


def test_a_server_that_takes_no_force_pushes_is_no_obstacle(world: World) -> None:
    world.on_origin("config", "receive.denyNonFastForwards", "true")
    world.on_origin("config", "receive.denyDeletes", "true")
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    assert ben.collaborate("takeover", "T001", "--reason", "x").data["lease"]["fence"] == 2
    wait_until(lambda: ada.collaborate("renew", "T001").code == 5)
    assert ben.collaborate("release", "T001").code == 0
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 3
