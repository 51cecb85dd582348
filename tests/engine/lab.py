"""Sites in a hand-driven world, for tests that follow one course of events."""

from dataclasses import replace
from itertools import count
from typing import Any

from cheops.engine.events import Submitted
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.engine.status import ResourceStatus, status
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Kind
from cheops.sim.apps import App
from cheops.sim.scripted_world import Resource, ScriptedWorld

_requests = count(1)


class Lab(ScriptedWorld):
    """Three sites a, b and c (or others), and short words for what tests do."""

    def __init__(self, sites: str = "abc", **limits: int) -> None:
        super().__init__(Limits(**{"seal_after": 1, **limits}))
        for name in sites:
            self.add_site(name)

    def make(self, name: str, app: App, at: str, **type_changes: Any) -> None:
        """Declare a resource, with a type that differs from the application's usual one."""
        changed = replace(app, type=replace(app.type, **type_changes))
        self.declare(Resource(name, changed, tuple(at), app.matrix), plain=False, parallel=False)
        self.settings.types[name] = replace(changed.type, name=name)

    def submit(
        self, site: str, resource: str, line: str, kind: Kind = Kind.NORMAL, matrix: Matrix | None = None
    ) -> None:
        """Send a command as a client would who knows where the resource is."""
        known = self.resources[resource]
        type_ = line.split(maxsplit=1)[0] if kind is Kind.NORMAL else kind.value
        sites = known.sites if not self.is_known(site, resource) else None
        rules = matrix or (known.matrix if sites else None)
        request = f"r{next(_requests)}"
        self.take(site, Submitted(request, resource, type_, Command(line), kind, resource, sites, rules))

    def move(self, site: str, resource: str, to: str) -> None:
        event = Submitted(f"r{next(_requests)}", resource, "sites", Command(""), Kind.SITES, resource, tuple(to))
        self.take(site, event)

    def run(self) -> None:
        self.settle(lambda _flight: None)

    def partition(self, *sides: str) -> None:
        side = {name: number for number, names in enumerate(sides) for name in names}
        self.set_cut({(a, b) for a in side for b in side if side[a] != side[b]})

    def heal(self) -> None:
        self.set_cut(set())

    def write_apart(self, resource: str, one: str, other: str) -> None:
        """Two commands that do not know of each other: one at a; then the other at b, cut off from it."""
        self.partition("a", "b")
        self.submit("a", resource, one)
        self.now_ms += 1_000
        self.submit("b", resource, other)

    def states(self, resource: str, at: str) -> list[Any]:
        start = self.resources[resource].app.start
        return [self.nodes[name].states.get(resource, start) for name in at]

    def at(self, site: str, resource: str) -> Replica:
        replica = self.replica(site, resource)
        assert replica is not None, f"{site} knows nothing of {resource}"
        return replica

    def status(self, site: str, resource: str) -> ResourceStatus:
        up = self.nodes[site].site
        assert up is not None
        return status(self.at(site, resource), set(up.up))
