"""Sites driven by hand, and short words for what the views say of a resource `n` there."""

from typing import Any

from cheops.api import models
from cheops.api.models import Explanation, ResourceStatus
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
    found = lab.nodes[site].site
    assert found
    return set(found.up)


def status(lab: Lab, site: str) -> ResourceStatus:
    return resource_status(lab.at(site, "n"), up(lab, site), lab.now_ms)


def explain(lab: Lab, site: str) -> Explanation:
    found = explanation(lab.at(site, "n"), up(lab, site), lab.now_ms)
    assert found.overall == status(lab, site).overall
    assert found.conclusion.startswith(found.overall)
    return found


def told(found: Explanation) -> str:
    return "\n".join(step.text for step in found.steps)


def cut_and_healed(app: App, base: str, one: str, other: str, **changes: Any) -> Lab:
    """Two operations that did not know of each other, after a common base."""
    lab = lab_with(app, **changes)
    lab.submit("a", "n", base)
    lab.run()
    lab.write_apart("n", one, other)
    lab.heal()
    lab.run()
    return lab


def deliver_to(lab: Lab, site: str) -> None:
    """The operations that are on their way to a site; what it answers is not delivered yet."""
    for flight in [flight for flight in lab.flights if flight.peer == site and flight.message.ops]:
        lab.deliver(flight)


def tried(lab: Lab, site: str, line: str, **changes: Any) -> models.DryRun:
    replica = lab.at(site, "n")
    before = (list(replica.history.ops), dict(replica.history.fates), list(replica.history.effective))
    asked = Submitted("", "n", line.split(maxsplit=1)[0], Command(line), rtype="n", **changes)
    found = dry_run(replica, asked, up(lab, site), lab.now_ms)
    assert before == (list(replica.history.ops), dict(replica.history.fates), list(replica.history.effective))
    return found
