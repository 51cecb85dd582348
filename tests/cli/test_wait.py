"""`cheops wait`: what it believes, and when it gives up; an agent that answers by a script."""

from collections.abc import Sequence

import pytest

from cheops.api.models.resources import Overall, ResourceStatus, SiteStatus
from cheops.cli import status
from tests.support.command import CommandResult, run_here

LONG_AGO_S = 3600.0


def answer(overall: Overall, *as_of_s: float | None) -> ResourceStatus:
    sites = tuple(
        SiteStatus(site=f"site{number}", reachable=True, as_of_s=age_s, digest="d", pending=0, failed=(), unknown=())
        for number, age_s in enumerate(as_of_s, 1)
    )
    return ResourceStatus(
        id="n", overall=overall, sentence="as told", unreachable=(), order_not_enforced=False, sites=sites
    )


class Agent:
    """Gives these answers, the last one again and again."""

    def __init__(self, answers: Sequence[ResourceStatus]) -> None:
        self.left = list(answers)

    def status(self, _id: str) -> ResourceStatus:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def waited(
    monkeypatch: pytest.MonkeyPatch, *answers: ResourceStatus, timeout: str = "60"
) -> tuple[CommandResult, Agent]:
    agent = Agent(answers)
    monkeypatch.setattr(status, "agent", lambda _url: agent)
    monkeypatch.setattr(status, "_POLL_S", 0.0)
    return run_here("wait", "n", "--timeout", timeout), agent


def test_it_ends_as_soon_as_all_have_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = (answer("CONVERGING", 0, 0), answer("CONVERGED", 0, 0), answer("DIVERGED", 0, 0))
    ran, agent = waited(monkeypatch, *said)
    assert (ran.code, len(agent.left)) == (0, 1)


def test_what_was_heard_before_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site may have lost its disk since then."""
    stale = answer("CONVERGED", 0, LONG_AGO_S)
    ran, agent = waited(monkeypatch, stale, answer("CONVERGED", 0, None), answer("CONVERGED", 0, 0))
    assert (ran.code, len(agent.left)) == (0, 1)
    assert "hour" not in ran.out
    ran, _ = waited(monkeypatch, stale, timeout="0")
    assert ran.code == 3
    assert "1.0 h ago" in ran.out


@pytest.mark.parametrize(("overall", "code"), [("DIVERGED", 1), ("CONVERGING", 3), ("UNREACHABLE", 3)])
def test_when_the_time_is_over_it_says_how_it_is(monkeypatch: pytest.MonkeyPatch, overall: Overall, code: int) -> None:
    ran, _ = waited(monkeypatch, answer(overall, 0, 0), timeout="0")
    assert (ran.code, ran.out.split()[0]) == (code, overall)
