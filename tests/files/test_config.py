"""Which layer wins, what is refused with which words, and what only warns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from forge_collab.core.errors import EnvironmentError_, UsageError
from forge_collab.files.config import SETTINGS, Config, load_config
from forge_collab.files.ignore import example_config


class Place:
    """A repository and a home to put settings into."""

    def __init__(self, folder: Path) -> None:
        self.root, self.home = folder / "repo", folder / "home"
        self.toml = self.root / ".forge" / "config" / "forge.toml"
        self.json = self.root / ".forge" / "config.json"
        self.user = self.home / ".config" / "forge" / "config.toml"
        for path in (self.toml, self.user):
            path.parent.mkdir(parents=True)

    def load(
        self,
        *,
        flags: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        git: Sequence[tuple[str, str]] = (),
    ) -> tuple[Config, list[str]]:
        return load_config(
            flags=flags or {},
            environ=environ or {},
            git_config=git,
            root=self.root,
            home=self.home,
        )

    def refused(self, **given: Any) -> UsageError:
        with pytest.raises(UsageError) as caught:
            self.load(**given)
        assert caught.value.exit_code == 2
        return caught.value


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_nothing_given_gives_the_defaults_of_the_table(place: Place) -> None:
    config, warnings = place.load()
    assert warnings == []
    assert config.model_dump() == {
        "transport": "auto",
        "remote": "origin",
        "target": None,
        "poll_seconds": 2.5,
        "idle_poll_seconds": 15,
        "network_timeout_seconds": 15,
        "claim_ttl_seconds": 120,
        "heartbeat_seconds": 30,
        "consolidation_ttl_seconds": 30,
        "consolidation_heartbeat_seconds": 10,
        "idle_release_minutes": 60,
        "state_ref": "refs/heads/forge/collab-state",
        "session": None,
        "commit_subject": "forge: {what} [skip ci]",
        "presence": "full",
        "route_epsilon": 0.05,
        "auto_push": True,
        "handle": None,
    }


def test_it_works_outside_of_a_repository(tmp_path: Path) -> None:
    config, _ = load_config(flags={}, environ={}, git_config=(), root=None, home=tmp_path)
    assert config == Config()


def test_each_layer_wins_over_the_ones_below_it(place: Place) -> None:
    given: dict[str, Any] = {}
    seen = [place.load(**given)[0].route_epsilon]
    place.user.write_text("[collab]\nroute_epsilon = 0.1\n")
    seen.append(place.load(**given)[0].route_epsilon)
    place.json.write_text('{"collab": {"route_epsilon": 0.2}}')
    seen.append(place.load(**given)[0].route_epsilon)
    place.toml.write_text("[collab]\nroute_epsilon = 0.3\n")
    seen.append(place.load(**given)[0].route_epsilon)
    given["git"] = [("forge.route-epsilon", "0.4")]
    seen.append(place.load(**given)[0].route_epsilon)
    given["environ"] = {"FORGE_COLLAB_ROUTE_EPSILON": "0.5"}
    seen.append(place.load(**given)[0].route_epsilon)
    given["flags"] = {"route_epsilon": 0.6}
    seen.append(place.load(**given)[0].route_epsilon)
    assert seen == [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]


def test_layers_mix_key_by_key(place: Place) -> None:
    place.user.write_text('[collab]\nremote = "mine"\npresence = "minimal"\n')
    place.toml.write_text('[collab]\nremote = "upstream"\n')
    config, _ = place.load(git=[("forge.target", "trunk")])
    assert (config.remote, config.presence, config.target) == ("upstream", "minimal", "trunk")


def test_a_flag_that_was_not_given_changes_nothing(place: Place) -> None:
    config, _ = place.load(flags={"handle": None, "transport": "polling"})
    assert (config.handle, config.transport) == (None, "polling")


def test_a_flag_that_is_no_setting_is_a_defect_of_the_caller(place: Place) -> None:
    with pytest.raises(TypeError, match="'json' is no setting"):
        place.load(flags={"json": True})


def test_an_empty_environment_variable_counts_as_unset(place: Place) -> None:
    place.toml.write_text('[collab]\ntarget = "trunk"\n')
    assert place.load(environ={"FORGE_COLLAB_TARGET": ""})[0].target == "trunk"


def test_an_empty_target_in_git_config_undoes_the_repositorys(place: Place) -> None:
    place.toml.write_text('[collab]\ntarget = "trunk"\n')
    assert place.load(git=[("forge.target", "")])[0].target is None


def test_the_last_of_several_git_values_wins(place: Place) -> None:
    pairs = [("forge.remote", "a"), ("user.name", "Ada"), ("forge.remote", "b")]
    assert place.load(git=pairs)[0].remote == "b"


def test_the_users_file_follows_an_absolute_xdg_config_home(place: Place) -> None:
    elsewhere = place.home / "xdg"
    (elsewhere / "forge").mkdir(parents=True)
    (elsewhere / "forge" / "config.toml").write_text('[collab]\nremote = "xdg"\n')
    place.user.write_text('[collab]\nremote = "dot"\n')
    assert place.load(environ={"XDG_CONFIG_HOME": str(elsewhere)})[0].remote == "xdg"
    assert place.load(environ={"XDG_CONFIG_HOME": "xdg"})[0].remote == "dot"


def test_a_file_with_crlf_and_a_byte_order_mark_is_read(place: Place) -> None:
    place.toml.write_bytes(b'\xef\xbb\xbf[collab]\r\nremote = "upstream"\r\n')
    assert place.load()[0].remote == "upstream"


def test_other_tables_belong_to_other_rooms(place: Place) -> None:
    place.toml.write_text("[engine]\nremote = 5\n[session]\nx = 1\n")
    assert place.load() == (Config(), [])


# Who one is


def test_the_handle_comes_from_flags_git_config_and_the_users_file(place: Place) -> None:
    place.user.write_text('[collab]\nhandle = "from-file"\n')
    assert place.load()[0].handle == "from-file"
    assert place.load(git=[("forge.handle", "from-git")])[0].handle == "from-git"
    assert place.load(flags={"handle": "from-flag"})[0].handle == "from-flag"


def test_the_handle_never_comes_from_a_file_of_the_repository(place: Place) -> None:
    place.toml.write_text('[collab]\nhandle = "eve"\n')
    place.json.write_text('{"collab": {"handle": "eve"}}')
    config, warnings = place.load()
    assert config.handle is None
    assert warnings == [
        f"handle in {path} is ignored: git config forge.handle NAME"
        for path in (place.json, place.toml)
    ]


def test_the_handle_never_comes_from_the_environment(place: Place) -> None:
    config, warnings = place.load(environ={"FORGE_COLLAB_HANDLE": "eve", "FORGE_HANDLE": "eve"})
    assert config.handle is None
    assert warnings == ["FORGE_COLLAB_HANDLE is ignored: git config forge.handle says who you are"]


def test_the_variables_of_a_run_are_no_config(place: Place) -> None:
    parts = ("WORKER", "FENCE", "RUN", "TASK", "ROLE", "ATTEMPT", "RESULT_FILE")
    assert place.load(environ={f"FORGE_{part}": "1" for part in parts}) == (Config(), [])


# What is refused


def test_a_bad_value_in_a_file_names_the_file_the_key_and_what_is_allowed(place: Place) -> None:
    place.toml.write_text("[collab]\nclaim_ttl_seconds = 0\n")
    error = place.refused()
    assert error.message == (
        f"claim_ttl_seconds = 0 ({place.toml}) can't be: a number from 1 to 3600"
    )
    assert error.data == {"path": str(place.toml), "key": "claim_ttl_seconds"}


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ({"git": [("forge.presence", "none")]}, "git config forge.presence"),
        ({"environ": {"FORGE_COLLAB_PRESENCE": "none"}}, "FORGE_COLLAB_PRESENCE"),
        ({"flags": {"presence": "none"}}, "--presence"),
    ],
)
def test_a_bad_value_elsewhere_names_its_place(
    place: Place, given: dict[str, Any], source: str
) -> None:
    error = place.refused(**given)
    assert error.message == f"presence = 'none' ({source}) can't be: full or minimal"
    assert error.data == {"path": source, "key": "presence"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("claim_ttl_seconds", "3601", "a number from 1 to 3600"),
        ("claim_ttl_seconds", "nan", "a number from 1 to 3600"),
        ("claim_ttl_seconds", "soon", "a number from 1 to 3600"),
        ("heartbeat_seconds", "0", "a number from 0.05 to 1200"),
        ("poll_seconds", "inf", "a number from 0.05 to 3600"),
        ("idle_poll_seconds", "-1", "a number from 0.05 to 3600"),
        ("idle_release_minutes", "0", "a number from 0.01 to 10080"),
        ("route_epsilon", "1.5", "a number from 0 to 1"),
        ("auto_push", "maybe", "true or false"),
        ("transport", "../evil", "the name of an installed transport"),
        ("remote", "--upload-pack=x", "can't be the name of a remote"),
        ("state_ref", "forge/state", "is no full ref name"),
        ("state_ref", "-x", "is no full ref name"),
        ("session", "a b", "letters, digits"),
        ("commit_subject", "forge", "{what}"),
        ("commit_subject", "{what} {who}", "{what}"),
        ("commit_subject", "{what}\nFake: trailer", "one line"),
        ("target", "forge/collab-state", "belongs to forge"),
        ("target", "Forge/x", "belongs to forge"),
        ("target", "refs/heads/main", "can't be the name of a branch"),
        ("target", "-d", "can't be the name of a branch"),
        ("target", "HEAD", "can't be the name of a branch"),
        ("target", "a//b", "can't be the name of a branch"),
        ("target", "a/.b", "can't be the name of a branch"),
        ("target", "a..b", "is no full ref name"),
        ("target", "x.lock", "can't be the name of a branch"),
        ("handle", "-ada", "can't be a handle"),
    ],
)
def test_a_value_out_of_bounds_is_refused(place: Place, key: str, value: str, words: str) -> None:
    error = place.refused(git=[(f"forge.{key.replace('_', '-')}", value)])
    assert words in error.message
    assert error.data["key"] == key


@pytest.mark.parametrize("line", ["claim_ttl_seconds = true", "remote = 5", "auto_push = 7"])
def test_a_value_of_another_type_is_refused(place: Place, line: str) -> None:
    place.toml.write_text(f"[collab]\n{line}\n")
    assert re.search(r"can't be: (a number|text|true or false)", place.refused().message)


@pytest.mark.parametrize("text", ["yes", "on", "true", "1", "TRUE"])
def test_a_switch_is_read_as_git_reads_it(place: Place, text: str) -> None:
    place.toml.write_text("[collab]\nauto_push = false\n")
    assert place.load()[0].auto_push is False
    assert place.load(git=[("forge.auto-push", text)])[0].auto_push is True


@pytest.mark.parametrize("target", ["main", "release/2.0", "feature/forge/x", "v1@prod"])
def test_an_ordinary_branch_can_be_the_target(place: Place, target: str) -> None:
    assert place.load(git=[("forge.target", target)])[0].target == target


def test_a_time_to_live_under_three_beats_is_refused_with_both_values(place: Place) -> None:
    error = place.refused(git=[("forge.claim-ttl-seconds", "60")])
    assert error.message == (
        "claim_ttl_seconds = 60 (git config forge.claim-ttl-seconds) "
        "is less than three beats of heartbeat_seconds = 30"
    )
    assert error.hint == "heartbeat_seconds = 20 or less, or claim_ttl_seconds = 90 or more"
    assert error.data == {
        "path": "git config forge.claim-ttl-seconds",
        "key": "claim_ttl_seconds",
    }


def test_too_slow_a_beat_is_named_where_only_the_beat_was_set(place: Place) -> None:
    place.toml.write_text("[collab]\nconsolidation_heartbeat_seconds = 11\n")
    error = place.refused()
    assert error.message.endswith(f"consolidation_heartbeat_seconds = 11 ({place.toml})")
    assert error.data == {"path": str(place.toml), "key": "consolidation_heartbeat_seconds"}


@given(st.integers(50, 12_000).map(lambda n: n / 1000).filter(lambda beat: beat * 3 >= 1))
def test_exactly_three_beats_are_enough_whatever_binary_fractions_say(beat: float) -> None:
    ttl = round(beat * 3, 3)
    assert Config(claim_ttl_seconds=ttl, heartbeat_seconds=beat).heartbeat_seconds == beat


def test_the_state_may_not_live_on_the_target_branch(place: Place) -> None:
    pairs = [("forge.target", "main"), ("forge.state-ref", "refs/heads/main")]
    assert "is the target branch too" in place.refused(git=pairs).message


def test_a_bad_value_that_a_higher_layer_covers_is_no_error(place: Place) -> None:
    place.toml.write_text('[collab]\nremote = "-x"\n')
    assert place.load(git=[("forge.remote", "origin")])[0].remote == "origin"


def test_control_characters_of_a_repository_never_reach_the_terminal(place: Place) -> None:
    place.toml.write_text('[collab]\nremote = "\\u001b[2J"\n"\\u001b]0;" = 1\n')
    assert "\x1b" not in place.refused().message
    _, warnings = place.load(git=[("forge.remote", "origin")])
    assert len(warnings) == 1
    assert "\x1b" not in warnings[0]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[collab]\nremote = \n", 2),
        (b"[collab]\n\nremote = 'x'\nremote = 'y'\n", 4),
        (b"# one\n# two\nx = '''", 3),
        (b"[collab]\nremote = '\xff'\n", 2),
    ],
)
def test_unreadable_toml_names_file_and_line(place: Place, content: bytes, line: int) -> None:
    place.toml.write_bytes(content)
    error = place.refused()
    assert error.message.startswith(f"{place.toml}, line {line}: ")
    assert error.data == {"path": str(place.toml), "line": line}


@pytest.mark.parametrize(
    ("content", "line"),
    [('{\n "collab": {,}\n}', 2), ("[1, 2]", 1), ("[" * 100_000, 1), ("", 1)],
)
def test_unreadable_json_names_file_and_line(place: Place, content: str, line: int) -> None:
    place.json.write_text(content)
    error = place.refused()
    assert error.message.startswith(f"{place.json}, line {line}: ")


@pytest.mark.parametrize("content", ["collab = 5\n", "[[collab]]\nremote = 'x'\n"])
def test_a_collab_that_is_no_table_is_refused(place: Place, content: str) -> None:
    place.toml.write_text(content)
    assert place.refused().data == {"path": str(place.toml), "key": "collab"}


def test_a_file_that_cannot_be_read_is_an_environment_error(place: Place) -> None:
    place.toml.mkdir()
    with pytest.raises(EnvironmentError_, match="can't read"):
        place.load()


# What warns


def test_an_unknown_key_in_a_file_warns_with_the_nearest_name(place: Place) -> None:
    place.toml.write_text("[collab]\nclaim_ttl = 60\nzzz = 1\n")
    assert place.load() == (
        Config(),
        [
            f"unknown key 'collab.claim_ttl' in {place.toml}; did you mean claim_ttl_seconds?",
            f"unknown key 'collab.zzz' in {place.toml}",
        ],
    )


def test_an_unknown_git_key_warns_with_the_nearest_name(place: Place) -> None:
    _, warnings = place.load(git=[("forge.claimttlseconds", "60"), ("forge.collab.remote", "x")])
    assert warnings == [
        "unknown key 'forge.claimttlseconds' in git config; did you mean forge.claim-ttl-seconds?",
        "unknown key 'forge.collab.remote' in git config; did you mean forge.remote?",
    ]


def test_git_keys_of_other_tools_and_rooms_are_silent(place: Place) -> None:
    keys = ("user.name", "forge.graphqlitemlimit", "forge.agent.claude.command", "forget.remote")
    assert place.load(git=[(key, "1") for key in keys]) == (Config(), [])


def test_an_unknown_variable_warns_with_the_nearest_name(place: Place) -> None:
    _, warnings = place.load(environ={"FORGE_COLLAB_CLAIM_TTL": "60"})
    assert warnings == [
        "unknown variable FORGE_COLLAB_CLAIM_TTL; did you mean FORGE_COLLAB_CLAIM_TTL_SECONDS?"
    ]


def test_a_setting_outside_of_its_table_warns(place: Place) -> None:
    place.toml.write_text('remote = "upstream"\n')
    assert place.load() == (
        Config(),
        [f"remote in {place.toml} has no effect outside of [collab]"],
    )


@pytest.mark.parametrize("linked", [".forge", ".forge/config", ".forge/config/forge.toml"])
def test_a_link_out_of_the_repository_is_not_followed(tmp_path: Path, linked: str) -> None:
    outside, root = tmp_path / "outside", tmp_path / "repo"
    toml = Path(".forge/config/forge.toml")
    (outside / toml).parent.mkdir(parents=True)
    (outside / toml).write_text('[collab]\nremote = "evil"\n')
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(outside / linked)
    config, warnings = load_config(flags={}, environ={}, git_config=(), root=root, home=tmp_path)
    assert config == Config()
    assert f"{root / toml} leads out of the repository and is not read" in warnings


def test_a_link_to_the_repository_itself_is_no_hindrance(place: Place, tmp_path: Path) -> None:
    place.toml.write_text('[collab]\nremote = "upstream"\n')
    (tmp_path / "alias").symlink_to(place.root)
    place.root = tmp_path / "alias"
    assert place.load()[0].remote == "upstream"


def test_a_link_loop_is_an_environment_error(place: Place) -> None:
    place.toml.symlink_to("forge.toml")
    with pytest.raises(EnvironmentError_, match="can't read"):
        place.load()


# The table for the docs


def test_every_field_is_a_setting_with_a_meaning(place: Place) -> None:
    assert [s.key for s in SETTINGS] == list(Config.model_fields)
    assert all(s.meaning.endswith(".") for s in SETTINGS)
    assert [s.default for s in SETTINGS] == list(Config().model_dump().values())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.key)
def test_every_name_in_the_table_works(place: Place, setting: Any) -> None:
    text = json.dumps(setting.default).strip('"') if setting.default is not None else ""
    assert place.load(git=[(setting.git_config, text)]) == (Config(), [])
    assert re.fullmatch(r"forge\.[a-z][a-z-]*", setting.git_config)
    if setting.environment:
        assert place.load(environ={setting.environment: text}) == (Config(), [])


def test_the_example_file_with_every_setting_uncommented_changes_nothing(place: Place) -> None:
    place.toml.write_text(re.sub(r"(?m)^#(?=\w)", "", example_config()))
    assert place.load() == (Config(), [])
    for setting in SETTINGS:
        assert setting.meaning in example_config()
        assert f"\n#{setting.key} = " in example_config() or setting.key == "handle"


def test_settings_cannot_be_changed_once_loaded() -> None:
    with pytest.raises(ValidationError):
        Config().remote = "x"  # type: ignore[misc]
