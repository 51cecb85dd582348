"""A short version of tests/gateway/chaos.py, which `make soak` runs for ten minutes."""

from pathlib import Path

from tests.gateway import chaos


def test_no_request_is_answered_by_a_wrong_site(tmp_path: Path) -> None:
    report = chaos.run(tmp_path / "rig", seconds=6.0, seed=3)
    assert report.served > 100
    assert report.wrong == []
    assert report.unexcused == []
    assert report.disturbances
