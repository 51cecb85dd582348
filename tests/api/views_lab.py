"""Sites driven step by step, and short names for the views of a resource `n` there."""

from typing import Any

from cheops.api.models.operations import DryRun, Explanation
from cheops.api.models.resources import ResourceStatus
from cheops.api.views.dry_run import dry_run
from cheops.api.views.explanation import explanation
from cheops.api.views.status import resource_status
from cheops.engine.events import Submitted
from cheops.log.operation import Command
from cheops.sim.apps import App
from tests.engine.lab import Lab


def lab_with(app: App, sites: str = "ab", **changes: Any) -> Lab:
    lab = Lab(sites)
    lab.make("n", app, sites, **changes)
    return lab


def up(lab: Lab, site: str) -> set[str]:
    engine = lab.nodes[site].site
    assert engine
    return set(engine.up)


def status(lab: Lab, site: str) -> ResourceStatus:
    return resource_status(lab.at(site, "n"), up(lab, site), lab.now_ms)


def explain(lab: Lab, site: str) -> Explanation:
    result = explanation(lab.at(site, "n"), up(lab, site), lab.now_ms)
    assert result.overall == status(lab, site).overall
    assert result.conclusion.startswith(result.overall)
    return result


def text_of(explanation: Explanation) -> str:
    return "\n".join(step.text for step in explanation.steps)


def cut_and_healed(app: App, base: str, one: str, other: str, **changes: Any) -> Lab:
    """Two concurrent operations after a common base."""
    lab = lab_with(app, **changes)
    lab.submit("a", "n", base)
    lab.run()
    lab.write_apart("n", one, other)
    lab.heal()
    lab.run()
    return lab


def deliver_to(lab: Lab, site: str) -> None:
    """The operations that are on their way to a site, after questions and answers; its replies are not delivered yet."""
    for _ in range(10):
        found = [flight for flight in lab.flights if flight.peer == site and flight.message.ops]
        for flight in found or [flight for flight in lab.flights if not flight.message.ops]:
            lab.deliver(flight)
        if found:
            return


def try_out(lab: Lab, site: str, line: str, **changes: Any) -> DryRun:
    replica = lab.at(site, "n")
    before = (list(replica.history.ops), dict(replica.history.fates), list(replica.history.effective))
    event = Submitted("", "n", line.split(maxsplit=1)[0], Command(line), rtype="n", **changes)
    result = dry_run(replica, event, up(lab, site), lab.now_ms)
    assert before == (list(replica.history.ops), dict(replica.history.fates), list(replica.history.effective))
    return result
