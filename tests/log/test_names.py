"""Which ids of resources are refused, by every site alike."""

import pytest

from cheops.log.names import MAX_ID_CHARACTERS, command_problem, resource_problem

FINE = ["a", "tenant:1", "pages/home.html", "a b", "été", "日本", "x..y", "...", "a" * 256]


@pytest.mark.parametrize("id_", FINE)
def test_ordinary_ids_are_accepted(id_: str) -> None:
    assert resource_problem(id_) is None
    assert command_problem(id_) is None


@pytest.mark.parametrize("id_", ["", " a", "a ", "a" * (MAX_ID_CHARACTERS + 1)])
def test_empty_padded_and_long_ids_are_refused(id_: str) -> None:
    assert resource_problem(id_)


@pytest.mark.parametrize(
    "character",
    "\0\n\x1b\x7f\x85\x9b\xa0\u200b\u2028\u2029\u202e\u2066\ud800\udfff\ufeff\uffff\U000e0041",
)
def test_characters_that_cannot_be_seen_are_refused(character: str) -> None:
    problem = resource_problem(f"a{character}b")
    assert problem is not None
    assert f"U+{ord(character):04X}" in problem
    problem.encode()  # the message itself can be sent


@pytest.mark.parametrize("id_", ["..", ".", "../x", "a/../b", "a/..", "./a", "../../../../x"])
def test_ids_that_lead_upwards_are_refused_for_every_type(id_: str) -> None:
    assert "'..'" in (resource_problem(id_) or "")


@pytest.mark.parametrize("id_", ["/etc/passwd", "//x", "-rf", "--", "a//b", "a/"])
def test_ids_that_commands_would_misread_are_refused_for_commands(id_: str) -> None:
    assert resource_problem(id_) is None
    assert command_problem(id_)
