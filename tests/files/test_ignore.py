"""What real git ignores after `init`, and what stays of the user's own rules."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_collab.core.errors import EnvironmentError_
from forge_collab.files.ignore import (
    CARVE_OUT,
    NESTED_IGNORE,
    NEVER_TRACKED,
    PROBES,
    add_carve_out,
    add_excludes,
    init_tree,
    remove_carve_out,
)

BEGIN, END = "# forge: never tracked (begin)", "# forge: never tracked (end)"
BLOCK = "\n".join((BEGIN, *NEVER_TRACKED, END)) + "\n"
CARVED = "\n".join(CARVE_OUT) + "\n"


class Repository:
    """A real repository whose git sees no settings but the ones the test makes."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repo"
        self.settings = folder / "gitconfig"
        self.settings.write_bytes(b"")
        self.git("init", "-q", str(self.root), folder=folder)
        self.gitignore = self.root / ".gitignore"
        self.exclude = self.root / ".git" / "info" / "exclude"

    def git(self, *arguments: str, folder: Path | None = None, check: bool = True) -> str:
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": str(self.settings),
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": str(self.settings.parent),
        }
        ended = subprocess.run(
            ["git", *arguments],
            cwd=folder or self.root,
            env=environ,
            check=False,
            capture_output=True,
            text=True,
        )
        assert not check or ended.returncode == 0, ended.stderr
        return ended.stdout

    def ignored(self) -> dict[str, bool]:
        paths = [path for path, _ in PROBES]
        told = self.git("check-ignore", "--no-index", *paths, check=False).splitlines()
        return {path: path in told for path in paths}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


# What git says


@pytest.mark.parametrize(
    "rules",
    [
        None,
        b"",
        b"/build\n",
        b".forge/\n",
        b"/.forge/\n",
        b".forge\n",
        b".forge/*\n",
        b"**/.forge/\n",
        b"/build\r\n.forge/\r\n",
        b".forge/",
        b"/build\r\n.forge/",
        b"\xef\xbb\xbf.forge/\n",
        b".*\n",
    ],
)
def test_every_probe_holds_whatever_hid_the_folder_before(
    repository: Repository, rules: bytes | None
) -> None:
    if rules is not None:
        repository.gitignore.write_bytes(rules)
    init_tree(repository.root)
    add_excludes(repository.exclude)
    assert repository.ignored() == dict(PROBES)


def test_every_probe_holds_under_a_global_rule(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "ignore").write_text(".forge/\n")
    repository.settings.write_text(f"[core]\n\texcludesFile = {tmp_path / 'ignore'}\n")
    assert all(repository.ignored().values())
    init_tree(repository.root)
    add_excludes(repository.exclude)
    assert repository.ignored() == dict(PROBES)


def test_a_rule_with_two_stars_is_stronger_and_the_probes_tell(repository: Repository) -> None:
    repository.gitignore.write_text(".forge/**\n")
    init_tree(repository.root)
    assert repository.ignored() != dict(PROBES)


def test_a_bare_rule_hides_everything_without_the_carve_out(repository: Repository) -> None:
    repository.gitignore.write_text(".forge/\n")
    assert all(repository.ignored().values())


def test_the_excludes_alone_keep_a_clones_own_files_out(repository: Repository) -> None:
    add_excludes(repository.exclude)
    assert repository.ignored() == dict(PROBES)


def test_git_status_after_init_shows_what_is_to_be_committed_and_nothing_else(
    repository: Repository,
) -> None:
    init_tree(repository.root)
    add_excludes(repository.exclude)
    for path, _ in PROBES:
        (repository.root / path).parent.mkdir(parents=True, exist_ok=True)
        (repository.root / path).touch()
    shown = repository.git("status", "--porcelain", "-uall").splitlines()
    wanted = {".gitignore", *(path for path, is_ignored in PROBES if not is_ignored)}
    assert {line[3:] for line in shown} == wanted


# The carve-out


def test_the_carve_out_is_the_one_of_the_design() -> None:
    assert CARVED == (
        "# forge: collab carve-out\n!/.forge/\n/.forge/*\n!/.forge/collab/\n!/.forge/config/\n"
        "!/.forge/specs/\n!/.forge/plans/\n!/.forge/tasks/\n"
    )


def test_a_last_line_without_an_end_is_ended_first(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(b"/build")
    assert add_carve_out(tmp_path / "i")
    assert (tmp_path / "i").read_bytes() == b"/build\n" + CARVED.encode()


def test_a_file_with_crlf_gets_crlf(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(b"/build\r\n/dist")
    assert add_carve_out(tmp_path / "i")
    assert (tmp_path / "i").read_bytes() == (
        b"/build\r\n/dist\r\n" + CARVED.replace("\n", "\r\n").encode()
    )


def test_the_mode_of_the_users_file_stays(tmp_path: Path) -> None:
    (tmp_path / "i").write_bytes(b"/build\n")
    (tmp_path / "i").chmod(0o600)
    add_carve_out(tmp_path / "i")
    assert (tmp_path / "i").stat().st_mode & 0o777 == 0o600


def test_a_carve_out_whose_lines_were_taken_away_is_added_again_at_the_end(
    tmp_path: Path,
) -> None:
    (tmp_path / "i").write_text(CARVED.replace("!/.forge/tasks/\n", ""))
    assert add_carve_out(tmp_path / "i")
    assert (tmp_path / "i").read_text().endswith(CARVED)


user_rules = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [b"/build", b".forge/", b"\n", b"\r\n", b"\r", b"#", *BLOCK.encode().split()]
        )
    ).map(b"".join),
)


@settings(deadline=None)
@given(user_rules)
def test_the_users_rules_stay_in_front_and_a_second_time_changes_nothing(rules: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, ".gitignore")
        path.write_bytes(rules)
        assert add_carve_out(path)
        once = path.read_bytes()
        assert once.startswith(rules)
        assert once[len(rules) :].replace(b"\r\n", b"\n").lstrip(b"\n") == CARVED.encode()
        assert not add_carve_out(path)
        assert path.read_bytes() == once


@settings(deadline=None)
@given(user_rules)
def test_removing_gives_the_users_rules_back(rules: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, ".gitignore")
        path.write_bytes(rules)
        add_carve_out(path)
        assert remove_carve_out(path)
        assert not remove_carve_out(path)
        left = path.read_bytes() if path.exists() else b""
        assert left in (rules, rules + b"\n", rules + b"\r\n")


def test_removing_deletes_a_file_that_held_nothing_else(tmp_path: Path) -> None:
    add_carve_out(tmp_path / ".gitignore")
    assert remove_carve_out(tmp_path / ".gitignore")
    assert not (tmp_path / ".gitignore").exists()


def test_a_linked_gitignore_is_refused_because_git_reads_none(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("/build\n")
    (tmp_path / ".gitignore").symlink_to("theirs")
    for change in (add_carve_out, remove_carve_out):
        with pytest.raises(EnvironmentError_, match="symbolic link"):
            change(tmp_path / ".gitignore")
    assert (tmp_path / "theirs").read_text() == "/build\n"


# info/exclude


def test_the_excludes_are_made_with_their_folder(tmp_path: Path) -> None:
    assert add_excludes(tmp_path / "info" / "exclude")
    assert (tmp_path / "info" / "exclude").read_text() == BLOCK


def test_the_excludes_go_behind_the_users_lines_once(tmp_path: Path) -> None:
    (tmp_path / "exclude").write_bytes(b"*.swp\r\n/mine")
    assert add_excludes(tmp_path / "exclude")
    once = (tmp_path / "exclude").read_bytes()
    assert once == b"*.swp\r\n/mine\r\n" + BLOCK.replace("\n", "\r\n").encode()
    assert not add_excludes(tmp_path / "exclude")
    assert (tmp_path / "exclude").read_bytes() == once


def test_an_older_block_is_replaced_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "exclude").write_text(f"*.swp\n{BEGIN}\n/.forge/old\n{END}\n!keep.swp\n")
    assert add_excludes(tmp_path / "exclude")
    assert (tmp_path / "exclude").read_text() == f"*.swp\n{BLOCK}!keep.swp\n"


def test_a_block_that_lost_its_end_costs_no_line_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "exclude").write_text(f"*.swp\n{BEGIN}\n/mine\n")
    assert add_excludes(tmp_path / "exclude")
    assert (tmp_path / "exclude").read_text() == f"*.swp\n{BLOCK}/mine\n"
    assert not add_excludes(tmp_path / "exclude")


def test_a_lone_carriage_return_ends_no_line_as_in_git(tmp_path: Path) -> None:
    (tmp_path / "exclude").write_bytes(b"odd\r" + BLOCK.encode())
    assert add_excludes(tmp_path / "exclude")
    assert (tmp_path / "exclude").read_bytes() == b"odd\r" + BLOCK.encode() * 2


def test_a_linked_exclude_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").write_text("*.swp\n")
    (tmp_path / "exclude").symlink_to("dotfiles")
    assert add_excludes(tmp_path / "exclude")
    assert (tmp_path / "exclude").is_symlink()
    assert (tmp_path / "dotfiles").read_text() == "*.swp\n" + BLOCK


@settings(deadline=None)
@given(user_rules)
def test_excludes_keep_whatever_the_user_wrote_and_settle_after_one_call(rules: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "exclude")
        path.write_bytes(rules)
        assert add_excludes(path)
        assert path.read_bytes().startswith(rules)
        assert not add_excludes(path)


# The tree


def test_init_makes_the_tree_and_names_what_it_made(tmp_path: Path) -> None:
    made = init_tree(tmp_path)
    assert made == [
        ".forge/config",
        ".forge/tasks",
        ".forge/specs",
        ".forge/plans",
        ".forge/collab",
        ".forge/collab/.gitignore",
        ".forge/config/forge.toml",
        ".gitignore",
    ]
    assert all((tmp_path / name).exists() for name in made)
    nested = (tmp_path / ".forge/collab/.gitignore").read_text()
    assert nested.splitlines() == list(NESTED_IGNORE)


def test_init_makes_nothing_the_second_time(tmp_path: Path) -> None:
    init_tree(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert init_tree(tmp_path) == []
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


def test_init_completes_a_partial_tree_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / ".forge/config").mkdir(parents=True)
    (tmp_path / ".forge/config/forge.toml").write_text("# mine\n")
    made = init_tree(tmp_path)
    assert ".forge/config" not in made
    assert ".forge/config/forge.toml" not in made
    assert ".forge/tasks" in made
    assert (tmp_path / ".forge/config/forge.toml").read_text() == "# mine\n"


@pytest.mark.parametrize("linked", [".forge", ".forge/collab"])
def test_init_writes_nothing_behind_a_link(tmp_path: Path, linked: str) -> None:
    (tmp_path / "outside").mkdir()
    root = tmp_path / "repo"
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(tmp_path / "outside")
    with pytest.raises(EnvironmentError_, match="symbolic link"):
        init_tree(root)
    assert os.listdir(tmp_path / "outside") == []


def test_a_file_in_the_place_of_the_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / ".forge").write_text("")
    with pytest.raises(EnvironmentError_, match=r"can't make .*\.forge/config: Not a directory"):
        init_tree(tmp_path)
