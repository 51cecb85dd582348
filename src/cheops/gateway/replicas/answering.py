"""From what the sites said of an operation to the answer that its client gets. Pure."""

from email.utils import formatdate
from urllib.parse import quote

import msgspec

from cheops.backends.http_answer import Said, read_said
from cheops.gateway.replicas.errors import NotPossibleError, UnknownOutcomeError
from cheops.gateway.replicas.submitting import Told
from cheops.gateway.seam import Header, Headers, Outgoing, without
from cheops.log.operation import Status

OPERATION = "Cheops-Operation"
REPLICAS = "Cheops-Replicas"
NOTE = "Cheops-Note"
CUT = "Cheops-Cut"
MEDIA_TYPE = "application/problem+json"
_MOST_NAMED = 64  # sites in a header


def answer_to(told: Told, meta_id: str, agent: str, location: str) -> Outgoing:
    """`agent` is the URL of this site's agent, where the operation can be asked for; `location` the path of
    what is created, or nothing."""
    where = f"{agent}/api/v1/resources/{quote(meta_id)}/operations/{quote(str(told.op), safe=':')}"
    own = _headers(told, where)
    if told.unknown is not None:
        text = (
            f"{told.op} of {meta_id} may have had an effect at {told.op.origin.site}, and nobody knows: "
            f"{told.unknown}. See what the service there has, then say so: "
            f"cheops resolve {meta_id} --op {told.op} --happened yes (or no)"
        )
        raise UnknownOutcomeError(text)
    if not told.is_enough or told.decided is None:
        return _later(told, meta_id, where, (*own, *_location(location)))
    decided = told.decided
    if decided.status is Status.SUPERSEDED:
        raise NotPossibleError(f"{told.op} was beaten by another operation before it ran; see {where}")
    said = read_said(decided.output or decided.detail)
    if decided.status is Status.OK:
        return _ok(said or Said(status=200), own, location)
    return _refused(said, decided.detail, own)


def _headers(told: Told, where: str) -> Headers:
    words = {site: answer.status.value for site, answer in told.answers.items() if answer.status}
    shown = (f"{quote(site)}; status={words.get(site, 'PENDING')}" for site in told.sites[:_MOST_NAMED])
    sites = ", ".join([*shown, *(["..."] if len(told.sites) > _MOST_NAMED else [])])
    return (
        (OPERATION, quote(str(told.op), safe=":")),
        (REPLICAS, sites),
        ("Link", f'<{where}>; rel="monitor"'),
    )


def _location(location: str) -> Headers:
    return (("Location", location),) if location else ()


def _ok(said: Said, own: Headers, location: str) -> Outgoing:
    more: list[Header] = [(NOTE, said.note)] if said.note else []
    if said.cut_bytes:
        more.append((CUT, f"{said.cut_bytes} bytes of the answer were not kept"))
    headers = said.headers if not location else (*without(said.headers, "Location"), *_location(location))
    return Outgoing(said.status, (*headers, *_dated(), *own, *more), said.body)


def _refused(said: Said | None, detail: str, own: Headers) -> Outgoing:
    if said is None:
        return _problem(409, detail, own)
    if said.note:
        return _problem(said.status, f"{said.note}. The service says: {said.text[:1000]}", own)
    return Outgoing(said.status, (*said.headers, *_dated(), *own), said.body)


def _later(told: Told, meta_id: str, where: str, own: Headers) -> Outgoing:
    waiting = [site for site in told.sites if site not in told.answers]
    body = {"operation": str(told.op), "resource": meta_id, "waiting_for": waiting, "ask": where}
    return Outgoing(202, (("Content-Type", "application/json"), *_dated(), *own), msgspec.json.encode(body))


def _problem(status: int, detail: str, own: Headers) -> Outgoing:
    body = {"type": "about:blank", "title": "Not replicated", "status": status, "detail": detail}
    return Outgoing(status, (("Content-Type", MEDIA_TYPE), *_dated(), *own), msgspec.json.encode(body))


def _dated() -> Headers:
    return (("Date", formatdate(usegmt=True)),)
