"""What somebody does who has the keys of site m: helpers of the tests of attacks. Security is on: the type of the
resource has a policy."""

from typing import Any

from msgspec.structs import replace

from cheops.engine.documents import Message
from cheops.engine.events import PeerUp, Queried, Received, SitesRemoved
from cheops.engine.status import Overall
from cheops.log.causality import joined
from cheops.log.operation import (
    Command,
    Kind,
    Operation,
    OpId,
    Origin,
    Seal,
    Stamp,
    Statement,
)
from cheops.log.policy import Policy
from cheops.sim.apps import COUNTER
from tests.engine.lab import Lab

Vector = dict[Origin, int]


def stolen(lab: Lab, line: str, seq: int = 1, **changes: Any) -> Operation:
    """An operation that somebody signs with the keys of m."""
    history = lab.at("m", "n").history
    origin = lab.nodes["m"].origin
    first = next(op for op in history.ops.values() if op.sites)
    fields: dict[str, Any] = {
        "origin": origin,
        "seq": seq,
        "deps": {**history.known, origin: seq - 1} if seq > 1 else dict(history.known),
        "payload": Command(line),
        "type": line.split(maxsplit=1)[0],
        "stamp": Stamp(lab.now_ms, seq, origin),
        "sites": None,
        "signature": "c2lnbmVk",
    }
    return replace(first, **{**fields, **changes})


def send(lab: Lab, to: str, *ops: Operation, **more: Any) -> None:
    lab.take(to, Received("m", Message("n", "1", ops, **more)))


def without_m(lab: Lab) -> None:
    """The real agent of m is silent: only the thief speaks."""
    lab.set_cut({(one, other) for one in "abc" for other in "m"} | {(other, one) for one in "abc" for other in "m"})


def run(lab: Lab, seconds: int = 40) -> None:
    for _ in range(seconds):
        lab.run()
        lab.pass_time(1_000)


def run_on(lab: Lab, seconds: int = 100) -> None:
    """Not until nothing happens: what is refused is sent again and again."""
    for _ in range(seconds):
        lab.pass_time(1_000)
        for flight in list(lab.flights):
            lab.deliver(flight)


def begun(sites: str = "abcm", by: str = "a", known: str = "", **changes: Any) -> Lab:
    """A resource at these sites, whose creator has set it to 1, and of which all of them know. Nothing is sealed unless
    a test wants it."""
    lab = Lab(known or sites, seal_after=1_000)
    lab.make("n", COUNTER, sites, checkpoint=None, policy=Policy(), **changes)
    lab.submit(by, "n", "set 1")
    run(lab, 3)
    return lab


def origins(lab: Lab, sites: str, thief: Origin) -> tuple[Origin, ...]:
    """These sites with the stores that they have, and the thief with one of its choice."""
    return tuple(sorted(thief if site == thief.site else lab.nodes[site].origin for site in sites))


def ask(lab: Lab, site: str, wanted: Vector, sites: str, thief: Origin | None = None) -> Statement | None:
    """What a site states if the thief asks, from its store or from one that it makes up."""
    if thief is not None:
        lab.take(site, PeerUp("m", thief.incarnation))
    thief = thief or lab.nodes["m"].origin
    request = Message("n", thief.incarnation, seal_wanted=wanted, seal_origins=origins(lab, sites, thief))
    lab.take(site, Received("m", replace(request, seal_wanted={}, seal_origins=())))  # loads the resource
    run(lab, 2)  # it hears from the others, and knows their stores
    lab.at(site, "n").statement = None
    lab.take(site, Received("m", request))
    return lab.at(site, "n").statement


def sealing(lab: Lab, stable: Vector, sites: str, statements: tuple[Statement, ...], **changes: Any) -> Operation:
    """An operation of m that seals."""
    origin = changes.pop("origin", lab.nodes["m"].origin)
    seq = changes.pop("seq", 1)
    deps = changes.pop("deps", joined(stable, {one.origin: one.made for one in statements if one.made}))
    stamp = changes.pop("stamp", Stamp(lab.now_ms, seq, origin))
    named = changes.pop("named", None) or origins(lab, sites, origin)
    signer = lab.at(statements[0].origin.site, "n").history if statements else None
    root = (signer.root or signer.earliest or stamp) if signer else stamp
    seal = Seal(stable, changes.pop("root", root), named, statements)
    fields = {"kind": Kind.SEAL, "payload": Command(""), "deps": deps, "stamp": stamp, "seal": seal, **changes}
    return stolen(lab, "seal", seq=seq, origin=origin, **fields)


def true_seal(lab: Lab, thief: Origin | None = None) -> Operation:
    """A seal of m that all sites have signed, and that nobody but m has yet."""
    known = dict(lab.at("a", "n").history.known)
    statements = tuple(one for site in "abc" if (one := ask(lab, site, known, "abcm", thief)))
    assert len(statements) == 3
    return sealing(lab, known, "abcm", statements, origin=thief or lab.nodes["m"].origin)


def effective(lab: Lab, site: str) -> set[OpId]:
    return {op.id for op in lab.at(site, "n").history.effective}


def without_the_thief(lab: Lab) -> Overall:
    """The status at a, when an operator has made all sites forget m."""
    for site in "abc":
        lab.take(site, SitesRemoved(frozenset("m")))
        lab.take(site, Queried("n"))
    lab.run()
    return lab.status("a", "n").overall
