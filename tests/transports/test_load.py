from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from gitworld import World

from forge_collab import transport
from forge_collab.core.errors import EnvironmentError_
from forge_collab.transport import Context, Transport, load


def entries(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    found = [EntryPoint(name, value, transport.GROUP) for name, value in points.items()]
    monkeypatch.setattr(transport, "entry_points", lambda *, group: found)


def test_polling_is_found_by_its_name(world: World) -> None:
    made = load("polling")(world.context(world.clone()))
    assert isinstance(made, Transport)
    assert made.name == "polling"


def test_an_unknown_name_is_told_with_the_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, polling="a:b", carrier="c:d")
    with pytest.raises(EnvironmentError_) as caught:
        load("pigeon")
    assert "pigeon" in caught.value.message
    assert "carrier, polling" in caught.value.message
    assert caught.value.hint is not None
    assert "pip install the package that has the 'forge.transports' entry" in caught.value.hint
    assert caught.value.hint.endswith("git config --unset forge.transport")


def test_where_nothing_is_installed_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch)
    with pytest.raises(EnvironmentError_, match="none"):
        load("polling")


def test_a_missing_library_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, carrier="no_such_library_here.pigeons:Carrier")
    with pytest.raises(EnvironmentError_) as caught:
        load("carrier")
    assert "no_such_library_here" in caught.value.message
    assert caught.value.hint == "pip install 'forge-collab[carrier]'"


def test_an_entry_point_that_names_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, carrier="forge_collab.transport:NoSuchClass")
    with pytest.raises(EnvironmentError_, match="can't be loaded: AttributeError") as caught:
        load("carrier")
    assert caught.value.data["transport"] == "carrier"


def test_a_name_is_no_path_into_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, polling="a:b")
    with pytest.raises(EnvironmentError_):
        load("forge_transport_polling:PollingTransport")


def test_polling_without_a_repository_is_an_error() -> None:
    with pytest.raises(EnvironmentError_, match="needs a git repository"):
        load("polling")(Context(instance="client-0"))


def test_polling_without_the_remote_is_an_error(world: World) -> None:
    with pytest.raises(EnvironmentError_, match="no remote called 'upstream'"):
        load("polling")(world.context(world.clone(), remote="upstream"))
