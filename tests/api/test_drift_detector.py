"""What counts as drift, and who may report it."""

import json
from typing import Any

import pytest

from cheops.api.drift_detector import difference
from tests.agent.rig import MakeRig, RefusedByAgentError
from tests.api.agents import two_sites

OK = {"Status": "OK", "Output": "1"}
OTHER = {"Status": "OK", "Output": "2"}
ABSENT = {"Status": "KO", "Output": "the service answers 404: no such image"}
GONE = {"Status": "KO", "Output": "the service answers 410: "}
NO_COPY = {"Status": "KO", "Output": "there is no copy of c4e095a1 at this site"}
BROKEN = {"Status": "KO", "Output": "the service answers 500: oh"}
SILENT = {"Status": "TIMEOUT", "Output": "site2 is unreachable"}
SENTENCE = "the application at {} differs from that at a, although all sites ran the same"


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((OK, OK), ""),
        ((OK, OTHER), SENTENCE.format("b")),
        ((OK, OTHER, OK), SENTENCE.format("b")),
        ((OK, OTHER, ABSENT), SENTENCE.format("b and c")),
        ((OK, ABSENT), SENTENCE.format("b")),
        ((ABSENT, GONE), None),  # it is not deleted: a GET of it does not show it
        ((OK, NO_COPY), SENTENCE.format("b")),
        ((ABSENT, NO_COPY), ""),
        ((NO_COPY, NO_COPY), ""),
        ((OK, BROKEN), None),
        ((OK, OTHER, SILENT), None),
    ],
)
def test_only_states_that_are_known_differ(states: tuple[dict[str, str], ...], expected: str | None) -> None:
    assert difference(dict(zip("abc", states, strict=False))) == expected


def test_states_that_were_cut_off_are_never_called_equal() -> None:
    cut = {"Status": "OK", "Output": "the beginning", "Cut": "yes"}
    assert difference({"a": cut, "b": cut}) is None
    assert difference({"a": cut, "b": {**cut, "Output": "another"}})


def test_only_a_site_of_the_resource_reports(make_rig: MakeRig) -> None:
    sites = two_sites(make_rig)
    sites.make("n", "set", "echo one > n", "file")

    def report(**found: Any) -> None:
        headers = {"Content-Type": "application/json"}
        sites.rig.request("site1", "POST", "/peer/verified", json.dumps(found).encode(), headers)

    for wrong in ({"by": "site9", "resource": "n", "differs": "x"}, {"by": "site2", "resource": "m", "differs": "x"}):
        with pytest.raises(RefusedByAgentError, match="403"):
            report(**wrong)
    for bad in ({"by": "site2"}, {"by": 1, "resource": "n", "differs": "x"}, {"resource": "", "by": "", "differs": ""}):
        with pytest.raises(RefusedByAgentError, match="400"):
            report(**bad)
    assert sites["site1"].status("n").overall == "CONVERGED"
    report(by="site2", resource="n", differs="by\x1b hand")
    status = sites["site1"].status("n")
    assert (status.overall, "\x1b" in status.sentence) == ("DIVERGED", False)
    report(by="site2", resource="n", differs="")
    assert sites["site1"].status("n").overall == "CONVERGED"
