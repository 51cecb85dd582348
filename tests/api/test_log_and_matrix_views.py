"""What log and matrix show of a resource, and that every view is read as it was written."""

from collections.abc import Iterator

import pytest

from cheops.api.models import from_json, plain, to_json
from cheops.api.models.resources import Overall as OverallName
from cheops.api.views.log import log_view, matrix_in_force, matrix_view, operations_page
from cheops.api.views.operations import find, full_name
from cheops.api.views.status import detail, summary
from cheops.engine.status import Overall
from cheops.errors import ClientError
from cheops.log.matrix import Matrix
from cheops.security.refusals import reason_of
from cheops.sim.apps import COUNTER, FILE
from tests.api.views_lab import cut_and_healed, explain, lab_with, status, try_out


def test_pages_hold_everything_once() -> None:
    lab = lab_with(COUNTER, checkpoint=None)
    for number in range(7):
        lab.submit("a", "n", f"inc {number}")
        lab.run()
    replica = lab.at("b", "n")

    def pages() -> Iterator[str]:
        cursor: str | None = ""
        while cursor is not None:
            page = operations_page(replica, cursor, 3)
            assert len(page.operations) <= 3
            yield from (op.command for op in page.operations)
            cursor = page.next

    assert list(pages()) == [f"inc {number}" for number in range(7)]


def test_operations_are_found_by_both_names() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    replica = lab.at("b", "n")
    op = find(replica, "a:1")
    assert find(replica, full_name(op.id)) is op
    with pytest.raises(ClientError, match="the newest are a:1") as caught:
        find(replica, "a:2")
    assert (caught.value.status, reason_of(caught.value)) == (404, "no such operation")


def test_the_matrix_shows_what_follows() -> None:
    lab = lab_with(COUNTER)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.submit("a", "n", "inc 1")
    lab.run()
    found = matrix_in_force(lab.at("b", "n"))
    pairs = {(pair.before, pair.after): (pair.result, pair.class_, pair.inferred) for pair in found.pairs}
    assert pairs["set", "inc"] == ("take-both-keep-order", 2, False)
    assert pairs["inc", "set"] == ("take-both-reverse-order", 2, True)
    assert (found.introduced_by, found.resource) == ("a:1", "n")
    assert found.replaces == {"set": ("inc", "set")}
    assert plain(found)["pairs"][0]["class"] == 2
    assert matrix_view(Matrix(), ["odd"]).never_mentioned == ("odd",)


def test_models_are_read_as_they_were_written() -> None:
    lab = cut_and_healed(FILE, "set base", "add one", "add two")
    replica = lab.at("a", "n")
    for model in (
        status(lab, "a"),
        explain(lab, "a"),
        log_view(replica),
        matrix_in_force(replica),
        summary(replica, set()),
        detail(replica, set(), lab.now_ms),
        try_out(lab, "a", "add three"),
    ):
        assert from_json(to_json(model), type(model)) == model


def test_the_names_of_the_verdicts_are_the_engine_s() -> None:
    assert set(OverallName.__args__) == {overall.value for overall in Overall}  # type: ignore[attr-defined]
