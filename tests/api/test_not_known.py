"""What is not known is shown as not known: in the status, the lanes, the log and the explanation."""

import pytest

from cheops.api.models.resources import SiteStatus
from cheops.api.views.log import lanes, log_view
from cheops.api.views.operations import find, operation_view
from cheops.engine import hub
from cheops.log.operation import Status
from cheops.sim.apps import COUNTER
from tests.api.views_lab import explain, lab_with, status, text_of, up
from tests.engine.lab import Lab


def never_heard() -> Lab:
    """The store of c was replaced, and c has not reported since."""
    lab = lab_with(COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.lose_disk("c")
    lab.restart("c")  # a and b meet it, and it is cut off before it has reported
    lab.partition("ab", "c")
    lab.submit("a", "n", "inc 1")
    lab.run()
    return lab


def passed_on() -> Lab:
    """b has passed on what c did; c and a do not reach each other."""
    lab = lab_with(COUNTER, "abc", checkpoint=None)
    lab.submit("a", "n", "set 1")
    lab.run()
    lab.set_cut({("a", "c"), ("c", "a")})
    lab.submit("a", "n", "inc 1")
    lab.run()
    return lab


def seen(lab: Lab, of: str) -> SiteStatus:
    return next(one for one in status(lab, "a").sites if one.site == of)


def test_a_number_that_is_not_known_is_null() -> None:
    lab = never_heard()
    found = status(lab, "a")
    assert seen(lab, "c").pending is None
    assert found.sentence == "c is unreachable (no report); what is pending at c is not known"
    assert "c is unreachable and has not reported on this resource, so what it has is not known" in text_of(
        explain(lab, "a")
    )


def test_the_lanes_and_the_log_say_so() -> None:
    lab = never_heard()
    lane = lanes(lab.at("a", "n"), up(lab, "a"), lab.now_ms).lanes[2]
    assert (lane.site, lane.pending, lane.states) == ("c", None, ("not-known", "not-known"))
    assert [mark.knows for mark in log_view(lab.at("a", "n")).lanes[2].marks] == [None, None]


def test_what_others_passed_on_counts() -> None:
    lab = passed_on()
    assert (seen(lab, "c").pending, seen(lab, "c").relayed) == (0, False)
    lane = lanes(lab.at("a", "n"), up(lab, "a"), lab.now_ms).lanes[2]
    assert (lane.pending, lane.states) == (0, ("ok", "ok"))
    view = operation_view(lab.at("a", "n"), find(lab.at("a", "n"), "a:2"))
    assert [reply.status for reply in view.replies] == [Status.OK] * 3


def test_replies_without_a_report_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its report was refused, or lost."""
    monkeypatch.setattr(hub, "reports_for", lambda *_: ())
    lab = passed_on()
    assert (seen(lab, "c").pending, seen(lab, "c").relayed) == (0, True)
    assert "by its replies that other sites passed on, it has run everything" in text_of(explain(lab, "a"))


def test_a_site_that_does_not_report_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "reports_for", lambda *_: ())
    lab = passed_on()
    engine = lab.nodes["a"].site
    assert engine is not None
    engine.up["c"] = lab.nodes["c"].origin.incarnation  # only the way from c to a is blocked: c answers probes
    found = status(lab, "a")
    assert (found.overall, found.unreachable) == ("UNREACHABLE", ())
    assert "c (last report" in found.sentence
    assert "does not report here, so the states cannot be compared; no operation was pending" in found.sentence
