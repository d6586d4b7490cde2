"""``forge demo``: what it prints is what is on its bare repository."""

from __future__ import annotations

import json
import subprocess

from conftest import World


def test_the_demo_takes_a_killed_holders_task_over_with_a_higher_fence(world: World) -> None:
    clone = world.clone("ada")
    kept = world.root / "kept"
    ran = clone.forge("demo", "--keep", str(kept), "--json", timeout=110)
    assert ran.code == 0, ran
    held = {task["id"]: task["holders"] for task in ran.data["tasks"]}
    assert list(held) == [f"T00{n}" for n in range(1, 9)]
    first, second = held["T001"]
    assert (first["fence"], second["fence"]) == (1, 2)
    assert first["handle"] != second["handle"]
    show = ("show", "forge/collab-state:leases/claim%3AT001.json")
    told = subprocess.run(
        ["git", "--git-dir", str(kept / "origin.git"), *show], capture_output=True, check=True
    )
    lease = json.loads(told.stdout)
    assert (lease["fence"], lease["claimant"]["handle"]) == (2, second["handle"])
