"""Real agents for the tests of the API, and short names for what the tests do with them."""

from typing import Any

from cheops.api.endpoints.site import GET_SITE
from cheops.api.models.operations import Accepted, Explanation, SubmitRequest, Wait
from cheops.api.models.resources import ResourceStatus
from cheops.client import Agent
from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import FILE, TALLY

# Neither a matrix nor a reset: nothing can put an order right.
PLAIN: dict[str, Any] = {"shell": True, "allow": ["..."], "cwd": "@FOLDER@", "read": "cat __ID__"}
TYPES = {"file": FILE, "tally": TALLY, "plain": PLAIN}


class Sites:
    """A rig, and a client for each of its agents."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.names = rig.names

    def __getitem__(self, site: str) -> Agent:
        return Agent(self.rig.url(site))

    def make(self, id_: str, type_: str, command: str, rtype: str, at: str = "site1") -> Accepted:
        """Submit the first operation of a resource; every site has applied it when this returns."""
        sites = " & ".join(self.names)
        request = SubmitRequest(type=type_, command=command, sites=sites, resource_type=rtype)
        accepted = self[at].submit(id_, request)
        assert accepted.satisfied, accepted
        return accepted

    def do(self, at: str, id_: str, type_: str, command: str, wait: Wait = Wait.FIRST) -> Accepted:
        return self[at].submit(id_, SubmitRequest(type=type_, command=command), wait=wait)

    def becomes(self, at: str, id_: str, overall: str) -> ResourceStatus:
        def expected() -> ResourceStatus | None:
            status = self[at].status(id_)
            return status if status.overall == overall else None

        seen: ResourceStatus = until(expected, f"for {id_} to be {overall} at {at}: {self[at].explain(id_)}")
        return seen

    def sees(self, at: str, other: str, state: str) -> None:
        until(lambda: self[at].call(GET_SITE, other).state == state, f"for {at} to see {other} {state}")


def two_sites(make_rig: MakeRig, **more_types: dict[str, Any]) -> Sites:
    """site1 and site2, started."""
    rig = make_rig({**TYPES, **more_types}, "site1", "site2")
    rig.start()
    return Sites(rig)


def text_of(explanation: Explanation) -> str:
    return "\n".join([*(step.text for step in explanation.steps), explanation.conclusion])
