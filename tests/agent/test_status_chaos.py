"""A short run of what `make soak` does for half an hour; and that its checker sees what is false."""

from pathlib import Path
from typing import Any

import pytest

from tests.agent.status_chaos import SITES, StatusChaos, make_rig_of_words, problems
from tests.wan import Wan

_ASKED_S = 1_000.0
_APPLIED = {"site1": {"w1": 1.0, "w2": 900.0}, "site2": {"w1": 1.0}, "site3": {"w1": 1.0, "w2": 900.0}}


def test_no_status_is_false_while_agents_and_links_fail(tmp_path: Path, wan: Wan) -> None:
    rig = make_rig_of_words(tmp_path, wan)
    try:
        rig.start()
        report = StatusChaos(rig, wan, seed=3, resources=2).run(8.0)
    finally:
        rig.close()
    assert not report.false, report.false
    assert report.overall["CONVERGED"]


def answer(overall: str, as_of_s: float = 0.0, unknown: tuple[str, ...] = (), **pending: int | None) -> dict[str, Any]:
    sites: list[dict[str, Any]] = [
        {"site": site, "pending": pending.get(site, 0), "as_of_s": as_of_s, "failed": [], "unknown": unknown}
        for site in SITES
    ]
    return {"overall": overall, "sentence": "a sentence", "sites": sites}


@pytest.mark.parametrize(
    ("said", "false"),
    [
        (answer("CONVERGED"), "CONVERGED, 0 pending at site2, which lacks ['w2']"),
        (answer("UNREACHABLE"), "UNREACHABLE, 0 pending at site2, which lacks ['w2']"),
        (answer("CONVERGING", site2=1), ""),
        (answer("CONVERGING", site2=None), ""),
        (answer("CONVERGING", site2=2), "2 pending at site2, which lacked at most 1"),
        (answer("CONVERGING", as_of_s=50.0, site2=1, site3=1), "1 pending at site3, which lacked at most 0"),
        (answer("CONVERGING", as_of_s=150.0, site2=1, site3=1), ""),
        (answer("DIVERGED", site2=1), "DIVERGED, and nothing failed: a sentence"),
        (answer("DIVERGED", unknown=("site1:1",), site2=1), ""),
    ],
)
def test_the_checker_sees_what_is_false(said: dict[str, Any], false: str) -> None:
    assert "; ".join(problems(said, {"w1", "w2"}, {"w1", "w2"}, _APPLIED, _ASKED_S)) == false
