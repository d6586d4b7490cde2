from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core import names
from forge_collab.core.errors import UsageError

BAD_FOR_ALL = ["", " ", "a b", "a\n", "\na", "-a", "a\0b", "é", "a;b", "$(x)", "\u202ea", "a\\b"]


@pytest.mark.parametrize("text", ["a", "A1", "ada.lovelace", "a_b-c", "7of9", "x" * 64])
def test_a_handle_is_letters_digits_and_a_few_signs(text: str) -> None:
    assert names.handle(text) == text


@pytest.mark.parametrize("text", [*BAD_FOR_ALL, ".a", "_a", "a/b", "a@b", "a:b", "x" * 65])
def test_what_is_no_handle_is_a_usage_error_that_says_what_to_type(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        names.handle(text)
    assert caught.value.hint == "forge collaborate start --handle NAME"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("ada", "ada"),
        ("ada lovelace", "ada-lovelace"),
        ("123+ada", "123-ada"),
        ("..ada..", "ada"),
        ("é", None),
        ("", None),
        ("-_.", None),
        ("x" * 99, "x" * 64),
    ],
)
def test_a_handle_is_made_of_a_mail_address_where_that_is_possible(
    text: str, made: str | None
) -> None:
    assert names.suggested_handle(text) == made


@given(st.text())
def test_a_suggested_handle_is_always_a_legal_one(text: str) -> None:
    made = names.suggested_handle(text)
    assert made is None or names.handle(made) == made


@pytest.mark.parametrize("text", ["w", "main", "claude:42", "wt/feature@2+x", "x" * 128])
def test_a_worker_can_be_an_agent_session_or_a_work_tree(text: str) -> None:
    assert names.worker(text) == text


@pytest.mark.parametrize("text", [*BAD_FOR_ALL, "/a", ":a", "x" * 129])
def test_what_can_not_name_a_worker_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        names.worker(text)


@pytest.mark.parametrize("text", ["T001", "a", "fix-login", "T1.2", "a_b", "console", "x" * 64])
def test_a_task_id_can_be_a_file_name_and_part_of_a_branch(text: str) -> None:
    assert names.task_id(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *BAD_FOR_ALL,
        "1a",
        ".a",
        "a/b",
        "../a",
        "a..b",
        "a.",
        "a.lock",
        "HEAD",
        "head",
        "con",
        "NUL.txt",
        "com1",
        "a@{1}",
        "a~1",
        "a^",
        "a:b",
        "a?",
        "x" * 65,
    ],
)
def test_a_task_id_that_a_path_or_branch_could_not_have_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        names.task_id(text)


@given(st.from_regex(r"[A-Za-z.][A-Za-z0-9_./-]{0,20}", fullmatch=True))
def test_a_task_id_never_climbs_out_of_its_folder(text: str) -> None:
    try:
        names.task_id(text)
    except UsageError:
        return
    assert "/" not in text
    assert text not in (".", "..")
    assert names.ref(f"refs/heads/forge/task/{text}@8").endswith(f"{text}@8")


def test_an_instance_is_sixteen_lower_case_hex_digits() -> None:
    assert names.is_instance("0123456789abcdef")
    for text in ("", "0123456789ABCDEF", "0" * 15, "0" * 17, "0123456789abcdeg", "0" * 16 + "\n"):
        assert not names.is_instance(text)


@pytest.mark.parametrize(
    "text", ["refs/heads/forge/collab-state", "refs/forge/state", "refs/heads/T1@8", "refs/a.b/c"]
)
def test_a_full_ref_name_is_taken_as_it_is(text: str) -> None:
    assert names.ref(text) == text


@pytest.mark.parametrize(
    "text",
    [
        *BAD_FOR_ALL,
        "refs",
        "refs/",
        "heads/main",
        "refs/heads/",
        "refs//a",
        "refs/heads/a..b",
        "refs/heads/.a",
        "refs/heads/a.",
        "refs/heads/a.lock",
        "refs/a.lock/b",
        "refs/heads/a@{1}",
        "refs/heads/a b",
        "refs/heads/a:b",
        "refs/heads/a\n",
        "+refs/heads/a",
    ],
)
def test_what_git_would_not_take_as_a_ref_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        names.ref(text)


@pytest.mark.parametrize("text", ["origin", "up-stream", "team/shared", "a.b"])
def test_a_remote_has_a_plain_name(text: str) -> None:
    assert names.remote(text) == text


@pytest.mark.parametrize("text", [*BAD_FOR_ALL, "--upload-pack=x", "ext::sh", "a:b"])
def test_a_remote_can_not_be_an_option_or_an_address(text: str) -> None:
    assert re.search(r"[^A-Za-z0-9_./-]|^-|^$", text)
    with pytest.raises(UsageError):
        names.remote(text)
