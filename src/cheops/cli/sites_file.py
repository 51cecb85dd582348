"""A YAML file of sites, read into a snapshot, so that scopes can be explained without a running agent.

here: site1                 # optional: the site that receives the request
sites:
  site1:
    services: [compute, image]
    rtt_ms: {site2: 8}      # in either direction, once
  site2:
    services: [image]
    up: false               # optional, true unless said
"""

from pathlib import Path

from cheops.documents import Value, read_document
from cheops.scope import SiteInfo, Snapshot
from cheops.scope.names import name_problem, normal
from cheops.text import listed, nearest


def read_sites(path: Path, here: str | None = None) -> Snapshot:
    """What the file says; `here` overrides the file's own."""
    root = read_document(path).record(required=("sites",), optional=("here",))
    records = {name: _site_record(name, value) for name, value in root["sites"].mapping().items()}
    if not records:
        raise root["sites"].fail("no site is named")
    sites = {name: _site(name, record) for name, record in records.items()}
    if "here" in root:
        written = normal(root["here"].string())
        _check_known(root["here"], written, sites)
        here = here or written
    return Snapshot(here, sites, _rtts_ms(records))


def _site_record(name: str, value: Value) -> dict[str, Value]:
    if problem := name_problem(name):
        raise value.fail(problem)
    return value.record(optional=("services", "rtt_ms", "up"))


def _site(name: str, record: dict[str, Value]) -> SiteInfo:
    services = []
    for value in record["services"].items() if "services" in record else ():
        service = normal(value.string())
        if problem := name_problem(service):
            raise value.fail(problem)
        services.append(service)
    return SiteInfo(name, frozenset(services), record["up"].boolean() if "up" in record else True)


def _rtts_ms(records: dict[str, dict[str, Value]]) -> dict[frozenset[str], float]:
    rtts_ms: dict[frozenset[str], float] = {}
    for name, record in records.items():
        for other, value in record["rtt_ms"].mapping().items() if "rtt_ms" in record else ():
            _check_known(value, other, records)
            if other == name:
                raise value.fail("a site is at no distance from itself; leave this out")
            rtt_ms = value.number(minimum=0)
            if rtts_ms.setdefault(frozenset((name, other)), rtt_ms) != rtt_ms:
                raise value.fail(
                    f"the opposite direction says {rtts_ms[frozenset((name, other))]:g} ms; give it once"
                )
    return rtts_ms


def _check_known(value: Value, name: str, known: dict[str, SiteInfo] | dict[str, dict[str, Value]]) -> None:
    if name not in known:
        meant = nearest(name, known)
        hint = f"did you mean '{meant}'? " if meant else ""
        raise value.fail(f"unknown site '{name}'; {hint}Sites of this file: {listed(known)}")
