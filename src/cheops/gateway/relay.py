"""From the answer of a service to the client: its head, with what the gateway adds, and its body."""

import h11

from cheops.config.gateway import GatewayConfig
from cheops.gateway.asking import Asked
from cheops.gateway.call import Informed
from cheops.gateway.client import Client
from cheops.gateway.errors import UpstreamError
from cheops.gateway.headers import (
    FALLBACK,
    SITE,
    as_header,
    connection_tokens,
    end_to_end,
    pseudonym,
    site_name,
    without_mesh,
)
from cheops.gateway.seam import Headers
from cheops.gateway.tunnel import join

_SWITCHING = 101
_AT_ONCE_BYTES = 64 * 1024


def answer_headers(headers: Headers, here: str, served_by: str, fallback: str) -> Headers:
    """The headers of an answer as the client gets them. Of the mesh's headers, only those of a gateway count,
    and an application is none."""
    kept = end_to_end(headers)
    if served_by == here:
        kept = (*without_mesh(kept), (SITE, site_name(here)))
    elif not any(name.lower() == SITE.lower() for name, _ in kept):
        kept = (*kept, (SITE, site_name(served_by)))
    via = ("Via", f"1.1 {pseudonym(here)}")
    return (*kept, via, (FALLBACK, as_header(fallback))) if fallback else (*kept, via)


def outgoing_headers(headers: Headers, here: str) -> Headers:
    """The same for an answer of the replicating half, which says by itself which other site served it."""
    if not any(name.lower() == SITE.lower() for name, _ in headers):
        headers = (*headers, (SITE, site_name(here)))
    return (*headers, ("Via", f"1.1 {pseudonym(here)}"))


def informing(client: Client) -> Informed:
    """Passes informational answers on, to clients that know them; 100 only to one that waits for it."""

    async def informed(status: int, reason: bytes, headers: Headers) -> None:
        is_wanted = client.waits_for_100 if status == 100 else client.is_modern
        if is_wanted and not client.is_answered:
            client.inform(status, reason, without_mesh(end_to_end(headers)))
            await client.flush()

    return informed


async def relay(client: Client, asked: Asked, headers: Headers, settings: GatewayConfig) -> None:
    """The whole answer, at the pace of the slower side. Raises GoneError, UpstreamError."""
    answer = asked.answer
    if answer.status == _SWITCHING:
        await _switch(client, asked, headers, settings)
        return
    client.begin(answer.status, answer.reason, headers)
    unsent = 0
    while True:  # what is there goes out together: every piece by itself would cost a call to the system
        event = asked.call.event_now()
        if event is None or unsent >= _AT_ONCE_BYTES:
            await client.flush()
            unsent = 0
            event = event or await asked.call.event()
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


async def _switch(client: Client, asked: Asked, headers: Headers, settings: GatewayConfig) -> None:
    """Another protocol from here on: bytes are passed on as they come."""
    answer = asked.answer
    protocols = [value for name, value in answer.headers if name.lower() == "upgrade"]
    if "upgrade" not in connection_tokens(answer.headers) or not protocols:
        raise UpstreamError(
            "the service changed the protocol without saying to which", "a bad 101", may_have_had_effect=True
        )
    switched = (*headers, ("Connection", "upgrade"), ("Upgrade", ", ".join(protocols)))
    try:
        client.inform(_SWITCHING, answer.reason, switched)
    except h11.LocalProtocolError:
        raise UpstreamError(
            "the service changed the protocol, which nobody asked for", "a bad 101", may_have_had_effect=True
        ) from None
    client.is_answered = client.is_tunnel = True
    client.data_beyond(asked.call.beyond)
    await client.flush()
    client.wire.on_end = None  # each side may be done before the other
    asked.call.wire.write(client.beyond())
    await join(client.wire, asked.call.wire, settings.tunnel_timeout_s)
