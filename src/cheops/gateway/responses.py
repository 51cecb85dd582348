"""Responses to the client: relayed from an upstream, the gateway's own, problem details, dry runs, and tunnels.

The last module on the path of a request: `handler` calls it with what `dispatcher` got from `upstream` or from
replication. It writes to the `ClientConnection`, where the next request then begins.
"""

import asyncio
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

import h11
import msgspec

from cheops.config.gateway import GatewayConfig
from cheops.errors import CheopsError
from cheops.gateway.client_connection import ClientConnection
from cheops.gateway.connection import Wire
from cheops.gateway.cors import with_exposed
from cheops.gateway.headers import (
    EFFECT,
    FALLBACK,
    SITE,
    Headers,
    RequestHead,
    connection_tokens,
    encode_header,
    encode_name,
    end_to_end,
    via_name,
    without,
    without_mesh,
)
from cheops.gateway.interfaces import DryRunResult, Response, UpstreamError, may_have_had_effect
from cheops.gateway.routing import Decision, Forward, Gather, InTurn, Local, Replicate, Target, kind_of, method_of
from cheops.gateway.upstream import OnInformational, UpstreamResponse
from cheops.scope.explanation import effect, explain, explanation_data, route_data
from cheops.scope.functions import Functions
from cheops.scope.route import One, Replicas, Route
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Scope

MEDIA_TYPE = "application/problem+json"
_NO_BODY = (204, 304)
_SWITCHING = 101
_AT_ONCE_BYTES = 64 * 1024  # of a response that are collected before they are written
_LOOK_S = 60.0


def dry_run_response(  # noqa: PLR0913, PLR0917 - all that was decided
    service: str,
    head: RequestHead,
    scope: Scope | None,
    route: Route | None,
    decision: Decision,
    snapshot: Snapshot,
    functions: Functions,
    replicant: DryRunResult | None = None,
) -> Response:
    """The sites, the route and the effect of the method, in the words of `cheops scope explain`. A replicated resource
    is changed at its own sites, whatever the scope says."""
    here = snapshot.here or ""
    if replicant and replicant.sites and (replicant.goes_everywhere or isinstance(decision, Local)):
        route = Replicas(replicant.sites)
        decision = Replicate(route)
    elif replicant and replicant.stays_here:
        route, decision = One(here), Local()
    method = (replicant.effect if replicant else None) or method_of(head.method)
    does = effect(route or One(here), method, snapshot)
    report: dict[str, Any] = {
        "dry_run": True,
        "site": here,
        "service": service,
        "method": head.method,
        "target": head.target,
        "scope": None if scope is None else str(scope),
        "replicant": (replicant.meta_id or None) if replicant else None,
        "about": replicant.about if replicant else None,
        "decision": kind_of(decision),
        "tried": [_words(one, here) for one in _targets(decision)],
        "route": route_data(route or One(here)),
        "effect": {
            "method": does.method.value,
            "sites": list(does.sites),
            "latency_ms": does.latency_ms,
            "does": does.does,
        },
    }
    if scope is not None:
        explained = explanation_data(explain(scope, snapshot, service, functions))["services"][0]
        report |= {"sites": explained["sites"], "means": explained["means"], "notes": explained["notes"]}
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"), (SITE, encode_name(here)))
    return Response(200, headers, msgspec.json.encode(report))


def _targets(decision: Decision) -> tuple[Target, ...]:
    return decision.targets if isinstance(decision, InTurn) else (decision,)


def _words(target: Target, here: str) -> dict[str, Any]:
    match target:
        case Local():
            return {"kind": "local", "sites": [here]}
        case Forward(site):
            return {"kind": "forward", "sites": [site]}
        case Replicate(route):
            return {"kind": "replicate", "sites": list(route.sites)}
        case Gather(route):
            return {"kind": "gather", "sites": list(route.sites)}


def problem_response(here: str, status: int, detail: str, *, had_no_effect: bool = True, **members: object) -> Response:
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **members}
    headers = [
        ("Content-Type", MEDIA_TYPE),
        ("Date", formatdate(usegmt=True)),
        ("Cache-Control", "no-store"),
        (SITE, encode_name(here)),
    ]
    if had_no_effect:
        headers.append((EFFECT, "none"))
    return Response(status, tuple(headers), msgspec.json.encode(body))


def error_response(here: str, error: CheopsError, **members: object) -> Response:
    details = {"fault": error.fault.value, "definite": error.definite, **members}
    return problem_response(here, error.status, str(error), had_no_effect=not may_have_had_effect(error), **details)


def internal_error_response(here: str) -> Response:
    return problem_response(here, 500, "internal error in Cheops; see the agent's log for details", had_no_effect=False)


async def send_response(client: ClientConnection, response: Response) -> None:
    """Send a whole response. The caller closes its body, if it is a stream."""
    body, headers = response.body, response.headers
    has_body = client.method != "HEAD" and response.status not in _NO_BODY
    if isinstance(body, bytes) and has_body:
        headers = without(headers, "Content-Length", "Transfer-Encoding")
        headers = (*headers, ("Content-Length", str(len(body))))
    client.begin(response.status, _reason_of(response.status), headers)
    if isinstance(body, bytes):
        if has_body and body:
            client.data(body)
    elif has_body:
        async for piece in body:
            if piece:
                client.data(piece)
                await client.flush()
    client.end()
    await client.flush()


async def send_refusal(client: ClientConnection, response: Response) -> None:
    """Respond to what is not a valid request, and close the connection. h11 sends no response without a request, so
    the bytes are written here."""
    body = response.body if isinstance(response.body, bytes) else b""
    lines = [f"HTTP/1.1 {response.status} {_reason_of(response.status).decode()}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    client.wire.write("\r\n".join(lines).encode("latin-1") + body)
    await client.close_gently()


def _reason_of(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""


async def tunnel(client: Wire, service: Wire, idle_s: float) -> None:
    """Pass bytes both ways until both sides have closed, one breaks off, or nothing moved for `idle_s`."""
    activity = _Activity(idle_s)
    pumps = {
        asyncio.ensure_future(_pump(client, service, activity)),
        asyncio.ensure_future(_pump(service, client, activity)),
    }
    try:
        await asyncio.gather(*pumps)
        client.close()
        service.close()
    except (OSError, TimeoutError):
        client.abort()
        service.abort()
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)


class _Activity:
    def __init__(self, idle_s: float) -> None:
        self.idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()

    def moved(self) -> None:
        self._last_s = self._loop.time()

    def left_s(self) -> float:
        return self._last_s + self.idle_s - self._loop.time()


async def _pump(source: Wire, sink: Wire, activity: _Activity) -> None:
    while True:
        left_s = activity.left_s()
        if left_s <= 0:
            raise TimeoutError
        try:
            data = await source.read(min(left_s, _LOOK_S) + 0.01)
        except TimeoutError:
            continue
        if not data:
            if source.is_lost:
                raise ConnectionResetError
            sink.write_end()  # only this direction: the other side may still send
            return
        activity.moved()
        sink.write(data)
        await sink.drain(activity.idle_s)


def proxied_headers(headers: Headers, here: str, served_by: str, fallback: str) -> Headers:
    """The headers of a relayed response. Headers of the mesh are kept only if a gateway set them, not an
    application."""
    kept = end_to_end(headers)
    if served_by == here:
        kept = with_exposed((*without_mesh(kept), (SITE, encode_name(here))))
    elif not any(name.lower() == SITE.lower() for name, _ in kept):
        kept = (*kept, (SITE, encode_name(served_by)))
    via = ("Via", f"1.1 {via_name(here)}")
    return (*kept, via, (FALLBACK, encode_header(fallback))) if fallback else (*kept, via)


def own_headers(headers: Headers, here: str) -> Headers:
    """The headers of a response of replication, which itself names the site that served it."""
    if not any(name.lower() == SITE.lower() for name, _ in headers):
        headers = (*headers, (SITE, encode_name(here)))
    return (*with_exposed(headers), ("Via", f"1.1 {via_name(here)}"))


def informational_relay(client: ClientConnection) -> OnInformational:
    """Relays informational responses to clients that understand them; 100 only to one that waits for it."""

    async def on_informational(status: int, reason: bytes, headers: Headers) -> None:
        is_wanted = client.waits_for_100 if status == 100 else client.is_modern
        if is_wanted and not client.has_response_head:
            client.inform(status, reason, without_mesh(end_to_end(headers)))
            await client.flush()

    return on_informational


async def relay(
    client: ClientConnection, response: UpstreamResponse, headers: Headers, settings: GatewayConfig
) -> None:
    """Relay a whole response, at the pace of the slower side. Raises ClientGoneError, UpstreamError."""
    upstream_head = response.head
    if upstream_head.status == _SWITCHING:
        await _switch(client, response, headers, settings)
        return
    client.begin(upstream_head.status, upstream_head.reason, headers)
    unsent = 0
    while True:  # pieces that are here already are sent together: one system call instead of many
        event = response.exchange.event_now()
        if event is None or unsent >= _AT_ONCE_BYTES:
            await client.flush()
            unsent = 0
            event = event or await response.exchange.event()
        if isinstance(event, h11.EndOfMessage):
            client.end(_trailers(event))
            await client.flush()
            return
        client.data(bytes(event.data))
        unsent += len(event.data)


def _trailers(event: h11.EndOfMessage) -> Headers:
    pairs = event.headers.raw_items()
    decoded = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)
    return without_mesh(end_to_end(decoded))


async def _switch(
    client: ClientConnection, response: UpstreamResponse, headers: Headers, settings: GatewayConfig
) -> None:
    """Switch to another protocol: from here on bytes are passed on unread."""
    upstream_head = response.head
    protocols = [value for name, value in upstream_head.headers if name.lower() == "upgrade"]
    if "upgrade" not in connection_tokens(upstream_head.headers) or not protocols:
        raise UpstreamError(
            "the service changed the protocol without naming the new one", "a bad 101", may_have_had_effect=True
        )
    switched = (*headers, ("Connection", "upgrade"), ("Upgrade", ", ".join(protocols)))
    try:
        client.inform(_SWITCHING, upstream_head.reason, switched)
    except h11.LocalProtocolError:
        raise UpstreamError(
            "the service changed the protocol without a request for it", "a bad 101", may_have_had_effect=True
        ) from None
    client.has_response_head = client.is_tunnel = True
    client.send_tunnel_data(response.exchange.trailing_data)
    await client.flush()
    client.wire.on_end = None  # in a tunnel one side may close before the other
    response.exchange.wire.write(client.early_tunnel_data())
    await tunnel(client.wire, response.exchange.wire, settings.tunnel_timeout_s)
