"""Request heads: reading them from a connection, and refusing those that two programs could read differently.

A request whose end one program sees here and the next one there can carry a second request past whoever checks
("request smuggling"). So the raw bytes of a head are checked before h11, which is more lenient, parses them:
what is not plain is refused, not repaired.
"""

import asyncio
import re
from collections.abc import Iterable

from cheops.config.gateway import GatewayConfig
from cheops.gateway.connection import Wire
from cheops.gateway.headers import Headers
from cheops.gateway.interfaces import GatewayRequestError
from cheops.text import printable, shortened

# Control characters but the tab; a carriage return or a line feed outside of a line's end.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")
_FOLD = re.compile(rb"\r\n[ \t]")
_BLANK_BEFORE_COLON = re.compile(rb"\r\n[^:\r]*[ \t]+:")
_REQUEST_LINE = re.compile(rb"[^ \t\r\n]+ [^ \t\r\n]+ HTTP/(\d\.\d)\r\n")
_LENGTH = re.compile(r"[0-9]{1,18}")
_TCHAR = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.~!$&'()*+;=%-]*)(:[0-9]{0,5})?")
_VERSIONS = (b"1.0", b"1.1")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_STARTS = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]")
_FRAMING = ("content-length", "transfer-encoding", "host")


def refuse_early(data: bytes, most: int) -> None:
    """What cannot become a request is not waited for."""
    if len(data) >= most:
        raise GatewayRequestError(f"the head of the request is larger than {most:,} bytes", 431)
    if _LONE_LINE_FEED.search(data):
        raise GatewayRequestError("a line of the request does not end with CR LF")
    if data and not _STARTS.match(data):
        raise GatewayRequestError("this is not HTTP/1.1 (TLS is not spoken at this address)")


def parse_headers(raw: bytes) -> Headers:
    """Headers as they stand there; h11, which reads them too, refuses those that are none."""
    lines = raw.decode("latin-1").split("\r\n")[1:-2]
    pairs = (line.partition(":") for line in lines)
    return tuple((name, value.strip(" \t")) for name, _, value in pairs)


def check_raw_head(raw: bytes) -> str:
    """Refuse what the HTTP library would let pass, and give the version. `raw` ends with the empty line."""
    if _BARE.search(raw):
        raise GatewayRequestError("a line of the request does not end with CR LF")
    if _CONTROL.search(raw):
        raise GatewayRequestError("the head of the request holds a control character")
    line = _REQUEST_LINE.match(raw)
    if not line:
        raise GatewayRequestError("the first line is not 'METHOD TARGET HTTP/1.1'")
    if line[1] not in _VERSIONS:
        version = line[1].decode()
        raise GatewayRequestError(f"HTTP/{version} is not spoken here; use HTTP/1.1", 505)
    if _FOLD.search(raw):
        raise GatewayRequestError("a header is continued on a second line, which is not allowed any more")
    if _BLANK_BEFORE_COLON.search(raw):
        raise GatewayRequestError("there is a blank between the name of a header and its colon")
    return line[1].decode()


def check_headers(headers: Iterable[tuple[str, str]], version: str) -> None:
    """Refuse an ambiguous length, and what would hide one from the next program."""
    lengths, codings, hosts = [], [], []
    for name, value in headers:
        lower = name.lower()
        if "_" in lower and lower.replace("_", "-") in _FRAMING:
            raise GatewayRequestError(f"the header {name} would be taken for {name.replace('_', '-')} by some")
        if lower == "content-length":
            lengths.append(value)
        elif lower == "transfer-encoding":
            codings.append(value)
        elif lower == "host":
            hosts.append(value)
        elif lower == "connection":
            _check_connection(value)
    _check_framing(lengths, codings, version)
    _check_host(hosts, version)


def _check_framing(lengths: list[str], codings: list[str], version: str) -> None:
    if len(lengths) > 1:
        raise GatewayRequestError("Content-Length is given more than once")
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise GatewayRequestError(f"Content-Length is not a number: '{_shown(lengths[0])}'")
    if lengths and codings:
        raise GatewayRequestError("both Content-Length and Transfer-Encoding are given; only one can be right")
    if codings and version == "1.0":
        raise GatewayRequestError("HTTP/1.0 has no Transfer-Encoding")
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        raise GatewayRequestError(f"Transfer-Encoding can only be 'chunked', not '{_shown(', '.join(codings))}'")


def _check_host(hosts: list[str], version: str) -> None:
    if len(hosts) > 1:
        raise GatewayRequestError("Host is given more than once")
    if not hosts and version == "1.1":
        raise GatewayRequestError("the header Host is missing")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise GatewayRequestError(f"Host is not a host name: '{_shown(hosts[0])}'")


def _check_connection(value: str) -> None:
    """To call a header hop-by-hop has it removed: not one on which the length of the request depends."""
    for token in (part.strip().lower() for part in value.split(",")):
        if token in _FRAMING:
            raise GatewayRequestError(f"Connection names {token}, which cannot be left out")
        if token and not _TCHAR.fullmatch(token):
            raise GatewayRequestError(f"Connection holds '{_shown(token)}', which is not the name of a header")


def check_trailers(trailers: Iterable[tuple[bytes, bytes]]) -> None:
    """A header after the body must not change how the body was understood."""
    for name, value in trailers:
        if _CONTROL.search(value) or name.lower().decode() in (*_FRAMING, "connection", "scope"):
            raise GatewayRequestError(f"{_shown(name.decode())} cannot come after the body")


def _shown(text: str) -> str:
    return printable(shortened(text))


_END = b"\r\n\r\n"


class HeadReader:
    """`beyond` is what came in after the head that was read last, and is no part of it."""

    __slots__ = ("_settings", "_wire", "beyond", "has_begun")

    def __init__(self, wire: Wire, settings: GatewayConfig) -> None:
        self._wire = wire
        self._settings = settings
        self.beyond = b""
        self.has_begun = False  # a part of the next head is here

    async def next(self) -> bytes | None:
        """The next head; None where the client has no more, or keeps silent for too long."""
        data, self.beyond = self.beyond, b""
        loop, most = asyncio.get_running_loop(), self._settings.head_size_bytes
        end_s = loop.time() + self._settings.head_timeout_s if data else None
        while True:
            data = data.lstrip(b"\r\n") if data[:1] in (b"\r", b"\n") else data
            self.has_begun = bool(data)
            place = data.find(_END)
            if 0 <= place < most:
                self.beyond = data[place + 4 :]
                return data[: place + 4]
            refuse_early(data, most)
            wait_s = self._settings.keep_alive_s if end_s is None else max(end_s - loop.time(), 0.0)
            try:
                more = await self._wire.read(wait_s)
            except TimeoutError:
                if end_s is None:
                    return None
                raise GatewayRequestError("the head of the request did not come in time", 408) from None
            if not more:
                return None
            end_s = end_s or loop.time() + self._settings.head_timeout_s
            data += more
