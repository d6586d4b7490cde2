"""A transport of somebody else: built from the page that says how, installed, used by name."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from conftest import Clone, World, clean_environ, refusal
from e2e.scenario import race_and_land

PAGE = Path(__file__).parents[2] / "docs" / "transports.md"
FILE = re.compile(r"^```\w+\n(# (\S+\.\w+)\n.*?)^```$", re.MULTILINE | re.DOTALL)
SUITE = "test_team_transport.py"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page shows, each named in its first line."""
    folder = tmp_path_factory.mktemp("package")
    for text, name in FILE.findall(PAGE.read_text("utf-8")):
        (folder / name).write_text(text, "utf-8")
    assert {path.name for path in folder.iterdir()} == {
        "pyproject.toml",
        "team_transport.py",
        SUITE,
    }
    return folder


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package was installed into, without any index."""
    folder = tmp_path_factory.mktemp("lib")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(folder)]
    done = subprocess.run(
        [*pip, *flags, str(package)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "team_transport.py").exists()
    assert not (folder / SUITE).exists()
    return folder


def test_it_passes_the_published_suite(package: Path, installed: Path, tmp_path: Path) -> None:
    (tmp_path / SUITE).write_text((package / SUITE).read_text("utf-8"), "utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", SUITE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ran.returncode == 0, ran.stdout
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert int(passed[1]) >= 40
    assert "skipped" not in ran.stdout


@dataclass
class TeamWorld(World):
    """A world whose records are in a file that the clones share, and not on the origin."""

    @property
    def shared(self) -> Path:
        """The file."""
        return self.root / "team.db"

    def record(self, path: str) -> dict[str, Any] | None:
        """A record by the path that it would have on a state branch."""
        key = unquote(path.removesuffix(".json"))
        with closing(sqlite3.connect(self.shared)) as file:
            row = file.execute("SELECT value FROM records WHERE key = ?", (key,)).fetchone()
        return json.loads(row[0]) if row else None


@pytest.fixture
def team_world(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamWorld]:
    """A world in which the package is installed; T004 waits for T001."""
    root = tmp_path_factory.mktemp("t")
    made = TeamWorld(root, clean_environ(root))
    made.environ |= {"PYTHONPATH": str(installed), "TEAM_FILE": str(made.shared)}
    made.make_origin(
        {
            "T001": "id: T001\ntitle: First\n",
            "T004": "id: T004\ntitle: Later\ndepends_on: [T001]\n",
        }
    )
    yield made
    made.end()


def test_two_clones_race_and_land_over_it_by_its_name(team_world: TeamWorld) -> None:
    ada, ben = (team_world.clone(name, forge__transport="team") for name in ("ada", "ben"))
    assert ada.start()["transport"] == "team"
    assert ben.collaborate("status").data["transport"] == "team"
    race_and_land(team_world, ada, ben)
    branches = team_world.on_origin("for-each-ref", "--format=%(refname)").splitlines()
    assert branches == ["refs/heads/main"], "no state branch: the records are in the file"


def check_refused(clone: Clone, *says: str) -> None:
    """`start` can't be, and leaves nothing behind; a look says why it can't show anything."""
    error = refusal(clone, "collaborate", "start", code=9, says=says)
    assert error["code"] == "environment"
    assert not (clone.forge_dir / "participant.json").exists()
    status = clone.collaborate("status")
    assert status.code == 0
    assert says[0] in " ".join(status.data["warnings"])


def test_a_name_that_nothing_installed_provides_is_told_with_what_to_install(world: World) -> None:
    clone = world.clone("ada", forge__transport="pigeon")
    check_refused(
        clone,
        "no transport is called 'pigeon'",
        "installed: ",
        "polling",
        "pip install the package that has the 'forge.transports' entry point 'pigeon'",
    )


def test_a_transport_that_lacks_its_library_is_told_with_its_package(
    world: World, tmp_path: Path
) -> None:
    place_by_hand(tmp_path, "import wings_of_a_pigeon\n")
    clone = world.clone("ada", forge__transport="pigeon")
    clone.environ["PYTHONPATH"] = str(tmp_path)
    check_refused(clone, "isn't installed: wings_of_a_pigeon", "pip install --upgrade pigeon-post")


def test_a_transport_whose_module_is_broken_is_no_defect_of_forge(
    world: World, tmp_path: Path
) -> None:
    place_by_hand(tmp_path, "def Pigeon(:\n")
    clone = world.clone("ada", forge__transport="pigeon")
    clone.environ["PYTHONPATH"] = str(tmp_path)
    check_refused(clone, "of pigeon-post can't be loaded: SyntaxError", "pip install --upgrade")


def place_by_hand(folder: Path, code: str) -> None:
    """An installed package `pigeon-post` whose transport is in the module `pigeon`."""
    (folder / "pigeon.py").write_text(code)
    about = folder / "pigeon_post-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[forge.transports]\npigeon = pigeon:Pigeon\n")


def test_a_clone_whose_transport_was_uninstalled_says_so_and_goes_on_when_it_is_back(
    team_world: TeamWorld,
) -> None:
    clone = team_world.clone("ada", forge__transport="team")
    clone.start()
    assert clone.collaborate("claim", "T001").code == 0
    assert clone.forge("daemon", "stop").code == 0
    installed = clone.environ.pop("PYTHONPATH")
    refusal(clone, "collaborate", "renew", "T001", code=9, says=("no transport is called 'team'",))
    assert clone.forge("daemon", "stop").code == 0
    clone.environ["PYTHONPATH"] = installed
    renewed = clone.collaborate("renew", "T001")
    assert renewed.code == 0, renewed
    assert renewed.data["lease"]["fence"] == 1
