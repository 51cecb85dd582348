"""The logic `text`: no insertion is lost, none is there twice, and all sites get the same."""

import os
import shlex
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cheops.log.operation import Command, Operation, Origin
from cheops.logic.edit import compact, decoded, difference, encoded, hash_of, length_before
from cheops.logic.text import text_logic
from tests.logic.histories import History, after_commands, edit_op

A, B = Origin("a", "1"), Origin("b", "1")
HISTORIES = int(os.environ.get("CHEOPS_TEST_TEXTS", "200"))
CHUNK = 50


def concurrent(base: str, one: str, other: str) -> str:
    ops = [edit_op(difference(base, one), base, A, {}, 1), edit_op(difference(base, other), base, B, {}, 2)]
    return after_commands(text_logic(ops), base)


@pytest.mark.parametrize("first", range(0, HISTORIES, CHUNK))
def test_concurrent_edits_lose_no_insertion(first: int) -> None:
    """Histories of 2 to 4 editors. That each editor's text is what the logic says of the operations that it knew
    is checked on the way: the commands check the hash."""
    for seed in range(first, first + CHUNK):
        history = History.played(seed)
        texts = [text for text in history.inserted if text]
        for text in (history.merged(history.ops), *map(history.text_at, history.known)):
            assert len(set(text)) == len(text), f"seed {seed}: something is there twice"
        merged = history.merged(history.ops)
        expected = {c for text in texts for c in text} - history.deleted
        assert set(merged) == expected, f"seed {seed}"
        for text in texts:  # in the order in which its author wrote it
            kept = [c for c in text if c in expected]
            assert [c for c in merged if c in text] == kept, f"seed {seed}"


def test_a_checkpoint_does_not_change_what_later_edits_give() -> None:
    """One site has replaced the history by its text, another one not yet."""
    for seed in range(50):
        whole = History.played(seed, 12)
        whole.meet()
        short = History.played(seed, 12)
        short.folded()
        short.random, short.inserted = Random(seed), list(whole.inserted)  # noqa: S311
        whole.random = Random(seed)  # noqa: S311
        before = len(whole.ops)
        for _ in range(12):
            whole.step()
            short.step()
        assert len(whole.ops) == before + len(short.ops)
        assert short.merged(short.ops) == whole.merged(whole.ops), f"seed {seed}"


def test_the_order_of_independent_operations_does_not_matter() -> None:
    """The order of clocks need not be that of the test: any that keeps causes first gives the same text."""
    for seed in range(100):
        history = History.played(seed)
        text, ops = history.merged(history.ops), list(history.ops)
        random, ordered = Random(seed), list[Operation]()  # noqa: S311
        while ops:
            ready = [op for op in ops if not any(other.is_before(op) for other in ops if other is not op)]
            ordered.append(random.choice(ready))
            ops.remove(ordered[-1])
        assert after_commands(text_logic(ordered), history.base) == text


def test_edits_of_one_line_are_merged_within_it() -> None:
    assert concurrent("red green blue\n", "dark red green blue\n", "red green pale blue\n") == (
        "dark red green pale blue\n"
    )
    assert concurrent("milk\n", "soy milk\n", "milk, 2 l\n") == "soy milk, 2 l\n"


def test_lines_added_at_one_place_are_not_mixed() -> None:
    one, other = "a\nfirst 1\nfirst 2\n", "a\nsecond 1\nsecond 2\n"
    assert concurrent("a\n", one, other) == "a\nfirst 1\nfirst 2\nsecond 1\nsecond 2\n"


def test_what_one_adds_to_a_line_that_the_other_deletes_stays() -> None:
    assert concurrent("keep\nold\n", "keep\n", "keep\nold and new\n") == "keep\n and new"


def test_characters_outside_of_the_basic_plane() -> None:
    assert concurrent("a😀b", "a😀😁b", "xa😀b") == "xa😀😁b"


def test_a_long_text_takes_several_commands() -> None:
    long = "".join(f"line {n} it's\n" for n in range(3_000))
    ops = [edit_op((long,), "", A, {}, 1), edit_op(("x",), "", B, {}, 2)]
    commands = text_logic(ops)
    assert len(commands) > 1
    assert max(len(command.line.encode()) for command in commands) < 100_000
    assert after_commands(commands, "") == f"{long}x"


# -- what is no edit ----------------------------------------------------------------------------------------


def _op(line: str, origin: Origin) -> Operation:
    return replace(edit_op((), "", origin, {}, 1), payload=Command(line))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "rm -rf /",
        "'",
        "cheops-text notes/__ID__ - '[]'",  # no hash
        f"cheops-text notes/__ID__ {hash_of('')} '[1.5]'",
        f"cheops-text notes/__ID__ {hash_of('')} '[true]'",
        f"cheops-text notes/__ID__ {hash_of('')} '{{}}'",
        f"cheops-text notes/__ID__ {hash_of('')} '[99999999999]'",
        f"cheops-text notes/__ID__ {hash_of('')} '[\"\\ud800\"]'",
        f"cheops-text notes/__ID__ {hash_of('')} '{'[' * 50_000}'",
        f"cheops-text notes/__ID__ {hash_of('x')} '[\"a\"]'",  # made for another text
        f"cheops-text notes/__ID__ {hash_of('')} '[7]'",  # of another length
        f"rm notes/__ID__ {hash_of('')} '[]'",  # another command
    ],
)
def test_what_is_no_edit_of_the_same_text_runs_as_it_is(line: str) -> None:
    """So each site checks what it allows, and an edit that does not fit fails there and is seen."""
    good = edit_op(("good",), "", A, {}, 1)
    other = _op(line, B)
    assert text_logic([good, other]) == (good.payload, other.payload)


def test_an_edit_that_its_origin_cannot_have_made_ends_the_merging() -> None:
    first = edit_op(("good",), "", A, {}, 1)
    late = edit_op((400, "x"), "good", B, {A: 1}, 2)
    assert text_logic([first, late]) == (first.payload, late.payload)


def test_nothing_gives_nothing() -> None:
    assert text_logic([]) == ()


# -- edits --------------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("ab \n", max_size=40)


@given(TEXTS, TEXTS)
def test_the_difference_of_two_texts_makes_one_the_other(before: str, after: str) -> None:
    edit = difference(before, after)
    assert length_before(edit) == len(before)
    assert after_commands([Command(f"cheops-text notes/__ID__ - '{encoded(edit)}'")], before) == after


@given(TEXTS)
def test_an_edit_is_one_word_without_placeholders(text: str) -> None:
    word = encoded(compact((f"__ID__'{text}",)))
    assert shlex.split(f"'{word}'") == [word]
    assert "__ID__" not in word
    assert word.isprintable()
    assert decoded(word) == (f"__ID__'{text}",)
