"""Answers that are the gateway's own, or the replicating half's, from their head to their end."""

from collections.abc import AsyncIterator
from http import HTTPStatus

from cheops.gateway.client import Client
from cheops.gateway.seam import Outgoing, without

_NO_BODY = (204, 304)


async def tell(client: Client, outgoing: Outgoing) -> None:
    """The whole of an answer."""
    body, headers = outgoing.body, outgoing.headers
    has_body = client.method != "HEAD" and outgoing.status not in _NO_BODY
    if isinstance(body, bytes) and has_body:
        headers = without(headers, "Content-Length", "Transfer-Encoding")
        headers = (*headers, ("Content-Length", str(len(body))))
    client.begin(outgoing.status, _reason_of(outgoing.status), headers)
    if isinstance(body, bytes):
        if has_body and body:
            client.data(body)
    else:
        await _stream(client, body, is_wanted=has_body)
    client.end()
    await client.flush()


async def _stream(client: Client, body: AsyncIterator[bytes], *, is_wanted: bool) -> None:
    try:
        if is_wanted:
            async for piece in body:
                if piece:
                    client.data(piece)
                    await client.flush()
    finally:
        if (close := getattr(body, "aclose", None)) is not None:
            await close()


async def refuse(client: Client, outgoing: Outgoing) -> None:
    """An answer to what could not be understood; the connection ends with it."""
    body = outgoing.body if isinstance(outgoing.body, bytes) else b""
    lines = [f"HTTP/1.1 {outgoing.status} {_reason_of(outgoing.status).decode()}"]
    lines += [f"{name}: {value}" for name, value in outgoing.headers]
    lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
    client.wire.write("\r\n".join(lines).encode("latin-1") + body)
    await client.close_gently()


def _reason_of(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
