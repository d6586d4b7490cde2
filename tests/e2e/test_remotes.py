"""The whole scenario over a path, and that all of it goes by the one push URL."""

from __future__ import annotations

from conftest import World, refusal
from e2e.scenario import at_work, branch_of, race_and_land, work


def test_over_a_path(world: World) -> None:
    race_and_land(world, world.clone("ada"), world.clone("ben"))


# One judge


def test_a_fetch_url_that_differs_from_the_push_url_is_never_asked(world: World) -> None:
    clones = [world.clone(name) for name in ("ada", "ben")]
    for clone in clones:
        clone.git("remote", "set-url", "origin", "hub:project.git")
        clone.git("config", f"url.{world.root}/nowhere.git.insteadOf", "hub:project.git")
        clone.git("config", f"url.{world.origin}.pushInsteadOf", "hub:project.git")
        assert clone.git("fetch", "origin", check=False).code != 0
    race_and_land(world, *clones)


def test_the_work_begins_at_the_push_url_and_not_at_an_old_mirror(world: World) -> None:
    mirror = world.root / "mirror.git"
    clone = world.clone("ada")
    world.run("git", "clone", "-q", "--mirror", str(world.origin), str(mirror))
    clone.git("remote", "set-url", "origin", str(mirror))
    clone.git("remote", "set-url", "--push", "origin", str(world.origin))
    other = world.clone("ben")
    other.git("commit", "-q", "--allow-empty", "-m", "newer than the mirror")
    other.git("push", "-q", "origin", "main")
    clone.start()
    work(clone, "T001", clone.collaborate("claim", "T001").data["lease"]["fence"])
    assert "newer than the mirror" in clone.git("log", "--format=%s").out
    (clone.path / "README").write_text("changed on both sides\n")
    clone.git("commit", "-q", "-a", "-m", "ada's")
    (other.path / "README").write_text("changed before her\n")
    other.git("commit", "-q", "-a", "-m", "ben's")
    other.git("push", "-q", "origin", "main")
    blocked = clone.collaborate("done", "T001")
    assert blocked.error["data"]["status"] == "merge_blocked"
    assert "git fetch origin " not in blocked.error["hint"], "that asks the mirror"
    assert "remote get-url --push origin" in blocked.error["hint"]


def test_a_remote_with_several_push_urls_is_refused_before_anything_happens(world: World) -> None:
    clone = world.clone("ada")
    before = world.on_origin("for-each-ref")
    for url in (world.origin, world.root / "second.git"):
        clone.git("remote", "set-url", "--add", "--push", "origin", str(url))
    says = ("2 push URLs", "one judge", "forge.remote")
    error = refusal(clone, "collaborate", "start", code=9, says=says)
    assert error["code"] == "environment"
    assert world.on_origin("for-each-ref") == before
    assert not (clone.forge_dir / "participant.json").exists()


def test_a_second_push_url_that_comes_later_stops_the_landing(world: World) -> None:
    clone = at_work(world, "ada")
    for url in (world.origin, world.root / "second.git"):
        clone.git("remote", "set-url", "--add", "--push", "origin", str(url))
    before = world.on_origin("for-each-ref")
    refusal(clone, "collaborate", "done", "T001", code=9, says=("2 push URLs",))
    assert world.on_origin("for-each-ref", "refs/heads/main") in before
    assert f"refs/heads/{branch_of('T001', 1)}" not in world.on_origin("for-each-ref")
