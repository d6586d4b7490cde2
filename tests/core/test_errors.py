from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core import errors, session

EXIT_CODES = {
    errors.ForgeError: 1,
    errors.FailedError: 1,
    errors.UsageError: 2,
    errors.HeldError: 3,
    errors.UnavailableError: 4,
    errors.LeaseLostError: 5,
    errors.CorruptError: 6,
    errors.BlockedError: 7,
    errors.RefusedError: 7,
    errors.EnvironmentError_: 9,
    errors.BugError: 70,
}
CODES = {
    errors.FailedError: "failed",
    errors.UsageError: "usage",
    errors.HeldError: "held",
    errors.UnavailableError: "offline",
    errors.LeaseLostError: "lease_lost",
    errors.CorruptError: "corrupt",
    errors.BlockedError: "blocked",
    errors.EnvironmentError_: "environment",
    errors.BugError: "bug",
}
DATA = st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()))


def of_the_module() -> set[type[errors.ForgeError]]:
    return {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.ForgeError)
    }


def test_the_exit_codes_are_the_promised_ones() -> None:
    assert {cls: cls.exit_code for cls in of_the_module()} == EXIT_CODES


def test_the_codes_in_json_are_the_promised_ones() -> None:
    assert {cls: cls.code for cls in CODES} == CODES


def test_the_tree_in_the_docstring_has_every_class_with_its_exit_code() -> None:
    lines = re.findall(r"[├└]── (\w+)\s+(\d+)\s", errors.__doc__ or "")
    written = {name: int(number) for name, number in lines}
    real = {cls.__name__: cls.exit_code for cls in of_the_module() - {errors.ForgeError}}
    assert written == real


def test_the_tree_in_the_docstring_shows_who_is_whose_child() -> None:
    lines = re.findall(r"^ {4}(│ {3})?[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE)
    parent = errors.ForgeError
    for indent, name in lines:
        cls = getattr(errors, name)
        assert cls.__base__ is (parent if indent else errors.ForgeError)
        parent = parent if indent else cls


def test_a_conflict_is_not_in_the_tree() -> None:
    conflict = errors.ConflictError("tasks/T1", "now")
    assert not isinstance(conflict, errors.ForgeError)
    assert (conflict.key, conflict.current) == ("tasks/T1", "now")


@given(
    cls=st.sampled_from(sorted(CODES, key=lambda cls: cls.__name__)),
    message=st.text(),
    hint=st.none() | st.text(),
    data=DATA,
)
def test_an_error_comes_back_from_its_json(
    cls: type[errors.ForgeError], message: str, hint: str | None, data: dict[str, object]
) -> None:
    error = cls(message, hint=hint, data=data)
    back = errors.from_json(error.to_json())
    assert back.to_json() == error.to_json()
    assert back.exit_code == error.exit_code
    assert isinstance(error, type(back))


def test_a_refusal_comes_back_with_its_exit_code_and_words() -> None:
    error = errors.RefusedError("no", data={"server": "hook declined"})
    back = errors.from_json(error.to_json())
    assert isinstance(back, errors.BlockedError)
    assert (back.exit_code, back.data) == (7, {"server": "hook declined"})


def test_an_error_defined_beside_the_tree_comes_back_too() -> None:
    error = session.DuplicateIdentityError("twice", data={"instance": "x"})
    assert isinstance(errors.from_json(error.to_json()), session.DuplicateIdentityError)


@pytest.mark.parametrize("error", [{}, {"code": "of the future", "message": "m"}, {"data": None}])
def test_an_unknown_error_is_a_failure(error: dict[str, object]) -> None:
    back = errors.from_json(error)
    assert back.exit_code == 1
    assert back.message == error.get("message", "unknown error")
    assert back.data == {}


def test_an_error_keeps_its_own_copy_of_the_data() -> None:
    data = {"task": "T1"}
    error = errors.UsageError("m", data=data)
    error.data["more"] = True
    assert data == {"task": "T1"}
    assert str(error) == "m"
