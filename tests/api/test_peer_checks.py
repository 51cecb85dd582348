"""What `cheops check` says of sites that reach each other one way, or not at all."""

import pytest
from msgspec.structs import replace

from cheops.api.models.site import Check
from cheops.api.peer_checks import arrivals
from cheops.peers.liveness import SiteState
from cheops.peers.views import SiteView
from tests.agent.rig import MakeRig, until
from tests.api.agents import Sites
from tests.security.clients import configure
from tests.support.ports import free_port

URL = "https://10.0.0.1:8079"
PEER = SiteView("site2", SiteState.UP, True, False, 10.0, 10.0, 10.0, "1", "", "", (), (), None, None)


@pytest.mark.parametrize(
    ("peers", "said"),
    [
        ([], ""),
        ([PEER], ""),
        ([replace(PEER, arrived_ms=None), PEER], ""),
        ([replace(PEER, arrived_ms=29_000.0)], ""),
        ([replace(PEER, arrived_ms=31_000.0)], "site2 answers, and nothing has come from there for 31 s"),
        ([replace(PEER, arrived_ms=None)], "site2 answers, and nothing has come from there since the agent started"),
        ([replace(PEER, arrived_ms=None, direct=False)], ""),
        ([replace(PEER, arrived_ms=None, state=SiteState.DOWN)], ""),
    ],
)
def test_a_site_that_nobody_reaches_says_so(peers: list[SiteView], said: str) -> None:
    assert "".join(check.detail for check in arrivals(peers, URL)) == said


def test_a_site_behind_nat_is_well(make_rig: MakeRig) -> None:
    """site3 advertises an address where nothing listens: the others reach it through the channel that it opens."""
    rig = make_rig({}, "site1", "site2", "site3")
    nowhere = f"http://127.0.0.1:{free_port()}"
    for name in rig.names:
        configure(rig, name, peers={"site1": rig.url("site1"), "site2": rig.url("site2")})
    configure(rig, "site3", advertise=nowhere)
    rig.start()
    sites = Sites(rig)

    def of_site3() -> Check | None:
        found = [check for check in sites["site1"].check().checks if "site3" in check.name and check.group == "peers"]
        return found[0] if found and found[0].ok and "ms away" in found[0].detail else None

    until(of_site3, "for site1 to reach site3")
