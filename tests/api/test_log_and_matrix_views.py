"""What log and matrix show of a resource, and that every view is read as it was written."""

from collections.abc import Iterator

import pytest

from cheops.api.models import from_json, plain, to_json
from cheops.api.models.operations import LogView
from cheops.api.models.resources import Overall as OverallName
from cheops.api.views import operations
from cheops.api.views.explanation import explanation
from cheops.api.views.log import log_view, matrix_in_force, matrix_view, operations_page
from cheops.api.views.operations import find, full_name, status_at
from cheops.api.views.status import detail, summary
from cheops.cli.history import joined_pages
from cheops.engine.replica import Replica
from cheops.engine.status import Overall
from cheops.errors import ClientError
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Status
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


def _long_log(count: int) -> Replica:
    lab = lab_with(COUNTER, checkpoint=None)
    for number in range(count):
        lab.submit("ab"[number % 2], "n", f"inc {number}")
        lab.run()
    return lab.at("b", "n")


def test_pages_of_a_log_hold_the_same_as_the_log() -> None:
    replica = _long_log(7)
    whole, pages, cursor = log_view(replica), list[LogView](), ""
    while not pages or cursor:
        pages.append(log_view(replica, cursor, 3))
        cursor = pages[-1].next or ""
    assert [len(page.operations) for page in pages] == [3, 3, 1]
    assert tuple(op for page in pages for op in page.operations) == whole.operations
    assert tuple(name for page in pages for name in page.effective) == whole.effective
    assert tuple(n for page in pages for n in page.positions) == whole.positions == (1, 2, 3, 4, 5, 6, 7)
    for number, lane in enumerate(whole.lanes):
        assert tuple(mark for page in pages for mark in page.lanes[number].marks) == lane.marks
    assert joined_pages(pages) == whole


def test_a_page_of_a_log_examines_no_other_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = _long_log(12)
    examined = []

    def counted(replica: Replica, op: Operation, site: str) -> Status:
        examined.append(op.id)
        return status_at(replica, op, site)

    monkeypatch.setattr(operations, "status_at", counted)
    log_view(replica, "", 2)
    assert len(examined) == 2 * len(replica.sites)


def test_a_cursor_of_a_log_outlives_its_operation() -> None:
    replica = _long_log(5)
    page = log_view(replica, "", 2)
    del replica.history.ops[find(replica, page.operations[-1].id).id]
    assert [op.command for op in log_view(replica, page.next or "", 9).operations] == ["inc 2", "inc 3", "inc 4"]


@pytest.mark.parametrize("cursor", ["site1:3", "1-2", "x-0-a/b", "1-2-nobody", "--"])
def test_a_wrong_cursor_of_a_log_is_refused(cursor: str) -> None:
    with pytest.raises(ClientError, match="not a cursor of a log") as caught:
        log_view(_long_log(1), cursor, 2)
    assert caught.value.status == 422


def test_an_explanation_compares_only_what_may_be_concurrent(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, compared = _long_log(30), []
    is_before = Operation.is_before

    def counted(self: Operation, other: Operation) -> bool:
        compared.append(other.id)
        return is_before(self, other)

    monkeypatch.setattr(Operation, "is_before", counted)
    explanation(replica, {"a"}, 0)
    assert len(compared) <= 2 * len(replica.history.ops)  # each with the next one of each other site


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
