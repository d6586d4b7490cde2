"""Landing on a server whose hooks refuse, are slow, hold the locks, or hang."""

from __future__ import annotations

import time

from conftest import Clone, World, refusal, set_hook, wait_until
from e2e.scenario import at_work, branch_of, check_landed, land

ONLY_MAIN = 'while read old new ref; do [ "$ref" = refs/heads/main ] && {action}; done; exit 0'


def test_a_hook_that_refuses_the_task_branch_is_quoted(world: World) -> None:
    clone = at_work(world, "ada")
    script = 'while read old new ref; do case "$ref" in refs/heads/forge/task/*)'
    set_hook(world, "pre-receive", f"{script} echo 'names need a ticket' >&2; exit 1;; esac; done")
    says = ("names need a ticket", "git push origin")
    error = refusal(clone, "collaborate", "done", "T001", code=7, says=says)
    assert error["data"]["status"] == "refused"
    record = world.record("tasks/T001.json")
    assert record is None or record["status"] == "pending"
    assert clone.collaborate("renew", "T001").code == 0


def test_a_hook_that_refuses_the_target_is_quoted_and_the_task_awaits_its_merge(
    world: World,
) -> None:
    clone = at_work(world, "ada")
    action = "echo 'main takes reviewed work only' >&2 && exit 1"
    set_hook(world, "pre-receive", ONLY_MAIN.format(action="{ " + action + "; }"))
    main = world.on_origin("rev-parse", "main")
    ran = clone.collaborate("done", "T001")
    assert ran.code == 7, ran
    assert "reviewed work only" in ran.error["message"]
    assert ran.error["data"]["status"] == "awaiting_merge"
    assert world.on_origin("rev-parse", "main") == main
    assert branch_of("T001", 1) in world.on_origin("for-each-ref", "--format=%(refname)")


def test_a_hook_that_is_slow_and_holds_the_locks_is_waited_for(world: World) -> None:
    clone = at_work(world, "ada")
    set_hook(world, "pre-receive", "sleep 0.7")
    set_hook(world, "reference-transaction", '[ "$1" = prepared ] && sleep 0.7; exit 0')
    check_landed(world, {"T001": land(clone, "T001")})


def test_a_ref_that_somebody_else_has_locked_for_a_second_is_tried_again(world: World) -> None:
    clone = at_work(world, "ada")
    clone.git("push", "-q", "origin", branch_of("T001", 1))
    lock = world.origin / "refs" / "heads" / "main.lock"
    lock.touch()
    running = clone.popen("collaborate", "done", "T001", "--json")
    time.sleep(1.2)
    assert running.poll() is None, running.communicate()
    lock.unlink()
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, (out, err)
    check_landed(world, {"T001": world.on_origin("rev-parse", "main")})


def test_a_hook_that_hangs_is_not_waited_for_and_what_became_of_it_is_found_out(
    world: World,
) -> None:
    clone = at_work(world, "ada", forge__network_timeout_seconds="2")
    marker = world.root / "hang"
    marker.touch()
    waits = f"n=0; while [ -e {marker} ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done"
    action = f"{{ {waits}; }}"
    set_hook(world, "pre-receive", ONLY_MAIN.format(action=action))
    main = world.on_origin("rev-parse", "main")
    began = time.monotonic()
    ran = clone.collaborate("done", "T001")
    assert ran.code == 4, ran
    assert time.monotonic() - began < 40, "it is bounded"
    assert ran.error["code"] == "offline"
    assert ran.error["hint"]
    assert world.on_origin("rev-parse", "main") == main
    marker.unlink()
    wait_until(lambda: clone.collaborate("status").data["online"])
    again = wait_until(lambda: landed_or_none(clone))
    check_landed(world, {"T001": again})


def landed_or_none(clone: Clone) -> str | None:
    """The commit that `done` says T001 landed as, or None while nobody knows."""
    ran = clone.collaborate("done", "T001")
    assert ran.code in (0, 4), ran
    return ran.data["commit"] if ran.code == 0 else None
