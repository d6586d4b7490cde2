from __future__ import annotations

from pathlib import Path

import pytest
from gitworld import World

from forge_collab.core.errors import EnvironmentError_, UsageError
from forge_collab.core.identity import derived_id
from forge_collab.git import repository as module
from forge_collab.git.repository import check_version, discover
from forge_collab.git.runner import Result


def test_a_clone_is_found_from_its_root_and_from_below(world: World) -> None:
    clone = world.clone()
    (clone / "src" / "deep").mkdir(parents=True)
    for start in (clone, clone / "src" / "deep"):
        found = discover(start, world.environ)
        assert found.root == clone
        assert found.common_dir == found.git_dir == clone / ".git"
        assert found.forge_dir == clone / ".git" / "forge"
        assert found.excludes() == clone / ".git" / "info" / "exclude"


def test_a_clone_is_found_from_inside_its_git_directory(world: World) -> None:
    clone = world.clone()
    found = discover(clone / ".git", world.environ)
    assert (found.root, found.common_dir) == (None, clone / ".git")
    assert found.remote("origin").push_url == str(world.origin)


def test_a_linked_work_tree_shares_the_common_directory(world: World) -> None:
    clone = world.clone()
    linked = world.place / "linked"
    world.git("worktree", "add", "--quiet", "-b", "side", str(linked), cwd=clone)
    found = discover(linked, world.environ)
    assert found.root == linked
    assert found.common_dir == clone / ".git"
    assert found.git_dir == clone / ".git" / "worktrees" / "linked"
    assert found.branch() == "side"


def test_a_bare_repository_has_no_root(world: World) -> None:
    found = discover(world.origin, world.environ)
    assert (found.root, found.common_dir) == (None, world.origin)
    assert found.branch() == "main"


def test_a_submodule_is_a_repository_of_its_own(world: World) -> None:
    clone = world.clone()
    world.git("submodule", "--quiet", "add", str(world.origin), "sub", cwd=clone)
    found = discover(clone / "sub", world.environ)
    assert found.root == clone / "sub"
    assert found.common_dir == clone / ".git" / "modules" / "sub"
    assert found.remote("origin").push_url == str(world.origin)


def test_a_separate_git_directory_is_found(world: World) -> None:
    elsewhere = world.place / "elsewhere"
    clone = world.clone("apart", "--separate-git-dir", str(elsewhere))
    found = discover(clone, world.environ)
    assert (found.root, found.common_dir) == (clone, elsewhere)


def test_a_path_may_have_spaces_and_umlauts(world: World) -> None:
    clone = world.clone("Ein Klon für Ümläute 日本 'x'")
    found = discover(clone, world.environ)
    assert found.root == clone
    assert found.common_dir == clone / ".git"


def test_a_symbolic_link_leads_to_the_same_common_directory(world: World) -> None:
    clone = world.clone()
    link = world.place / "link"
    link.symlink_to(clone)
    assert discover(link, world.environ).common_dir == clone / ".git"


def test_an_environment_that_names_another_repository_is_not_believed(world: World) -> None:
    first, second = world.clone("first"), world.clone("second")
    environ = {**world.environ, "GIT_DIR": str(second / ".git"), "GIT_WORK_TREE": str(second)}
    assert discover(first, environ).root == first


def test_a_folder_outside_any_repository_is_an_error(world: World) -> None:
    (world.place / "plain").mkdir()
    with pytest.raises(EnvironmentError_, match="not in a git repository") as caught:
        discover(world.place / "plain", world.environ)
    assert caught.value.exit_code == 9


def test_a_folder_that_does_not_exist_is_an_error(world: World) -> None:
    with pytest.raises(EnvironmentError_, match="no such folder"):
        discover(world.place / "nothing", world.environ)


@pytest.mark.parametrize("shown", [b"git version 2.37.9\n", b"git version 1.8.3.1\n", b""])
def test_a_git_too_old_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch, shown: bytes
) -> None:
    monkeypatch.setattr(module, "run_sync", lambda *a, **k: Result(0, shown, ""))
    with pytest.raises(EnvironmentError_, match="too old"):
        check_version(world.place, world.environ)


@pytest.mark.parametrize("shown", [b"git version 2.38.0\n", b"git version 2.50.1 (Apple Git-155)"])
def test_a_git_new_enough_is_none(
    world: World, monkeypatch: pytest.MonkeyPatch, shown: bytes
) -> None:
    monkeypatch.setattr(module, "run_sync", lambda *a, **k: Result(0, shown, ""))
    assert check_version(world.place, world.environ) == shown.decode().split()[2]


# Configuration


def test_settings_come_in_gits_order_and_with_any_text(world: World) -> None:
    clone = world.clone()
    world.config("forge.handle", "global")
    world.git("config", "forge.handle", "local", cwd=clone)
    world.git("config", "forge.text", "two\nlines = ü", cwd=clone)
    found = discover(clone, world.environ)
    assert found.config_pairs() == [
        ("forge.handle", "global"),
        ("forge.handle", "local"),
        ("forge.text", "two\nlines = ü"),
    ]
    assert found.config("forge.handle") == "local"
    assert found.config("forge.nothing") is None


def test_branch_and_upstream_are_those_of_the_work_tree(world: World) -> None:
    clone = world.clone()
    found = discover(clone, world.environ)
    assert (found.branch(), found.upstream("origin")) == ("main", "main")
    assert found.upstream("elsewhere") is None
    world.git("switch", "--quiet", "-c", "feature/x.y", cwd=clone)
    assert (found.branch(), found.upstream("origin")) == ("feature/x.y", None)
    world.git("switch", "--quiet", "--detach", cwd=clone)
    assert (found.branch(), found.upstream("origin")) == (None, None)


def test_the_author_is_the_users_identity(world: World) -> None:
    clone = world.clone()
    assert discover(clone, world.environ).author() == ("Test Person", "person@example.org")
    world.git("config", "user.name", "A <b> C", cwd=clone)
    assert discover(clone, world.environ).author() == ("A b C", "person@example.org")
    environ = {**world.environ, "GIT_COMMITTER_NAME": "Env", "GIT_COMMITTER_EMAIL": "e@x"}
    assert discover(clone, environ).author() == ("Env", "e@x")


def test_without_an_identity_the_author_is_forge(world: World) -> None:
    world.global_config.write_text("")
    assert discover(world.clone(), world.environ).author() == ("forge", "forge@localhost")


# The remote


def test_a_remote_with_one_url_is_addressed_by_its_name(world: World) -> None:
    remote = discover(world.clone(), world.environ).remote("origin")
    assert remote.address == "origin"
    assert remote.fetch_url == remote.push_url == remote.judge == str(world.origin)
    assert remote.derived_id == derived_id(str(world.origin))


def test_a_push_url_of_its_own_is_the_one_address(world: World) -> None:
    clone = world.clone()
    world.git("config", "remote.origin.pushurl", "https://me:pw@example.org/a.git", cwd=clone)
    remote = discover(clone, world.environ).remote("origin")
    assert remote.fetch_url == str(world.origin)
    assert remote.address == remote.push_url == "https://me:pw@example.org/a.git"
    assert remote.shown == "https://example.org/a.git"
    assert remote.derived_id == derived_id("git@example.org:a")


@pytest.mark.parametrize("key", ["remote.origin.pushurl", "remote.origin.url"])
def test_several_push_urls_are_no_judge(world: World, key: str) -> None:
    clone = world.clone()
    world.git("config", "--add", key, "https://example.org/a.git", cwd=clone)
    world.git("config", "--add", key, "https://example.org/b.git", cwd=clone)
    with pytest.raises(EnvironmentError_, match="push URLs") as caught:
        discover(clone, world.environ).remote("origin")
    assert caught.value.exit_code == 9


def test_instead_of_is_applied(world: World) -> None:
    clone = world.clone()
    world.config("url.https://example.org/.insteadOf", "work:")
    world.git("remote", "set-url", "origin", "work:team/a.git", cwd=clone)
    remote = discover(clone, world.environ).remote("origin")
    assert remote.push_url == remote.fetch_url == "https://example.org/team/a.git"
    assert remote.address == "origin"


def test_push_instead_of_is_applied_to_reads_too(world: World) -> None:
    clone = world.clone()
    world.config("url.git@example.org:.pushInsteadOf", "https://example.org/")
    world.git("remote", "set-url", "origin", "https://example.org/team/a.git", cwd=clone)
    remote = discover(clone, world.environ).remote("origin")
    assert remote.address == "git@example.org:team/a.git"


@pytest.mark.parametrize("start", [".", "src", ".git"])
def test_a_relative_path_means_the_same_from_everywhere(world: World, start: str) -> None:
    clone = world.clone()
    (clone / "src").mkdir()
    world.git("remote", "set-url", "origin", "../origin.git", cwd=clone)
    assert discover(clone / start, world.environ).remote("origin").judge == str(world.origin)


def test_a_file_url_and_its_path_are_one_session(world: World) -> None:
    clone = world.clone()
    by_path = discover(clone, world.environ).remote("origin").derived_id
    world.git("remote", "set-url", "origin", world.origin.as_uri(), cwd=clone)
    assert discover(clone, world.environ).remote("origin").derived_id == by_path


def test_no_such_remote_is_an_error_with_a_way_out(world: World) -> None:
    with pytest.raises(EnvironmentError_, match="no remote called 'upstream'") as caught:
        discover(world.clone(), world.environ).remote("upstream")
    assert "git remote add upstream" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["", "-x", "--upload-pack=touch x", "a b", "a\nb"])
def test_a_remotes_name_can_not_be_an_option(world: World, name: str) -> None:
    with pytest.raises(UsageError):
        discover(world.clone(), world.environ).remote(name)


def test_a_global_ban_of_bare_repositories_leaves_the_common_directory_readable(
    world: World,
) -> None:
    clone = world.clone()
    world.config("safe.bareRepository", "explicit")
    found = discover(clone, world.environ)
    inside = type(found)(Path(found.common_dir), found.git_dir, None, world.environ)
    assert inside.remote("origin").push_url == str(world.origin)
    assert inside.author() == ("Test Person", "person@example.org")
