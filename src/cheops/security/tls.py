"""TLS 1.3 between sites, and for clients of one site: contexts, the acceptor of connections, and peer identities.

A server asks for a certificate but accepts a connection without one: people and programs have none, and use a
token. A certificate that is shown must be one of the mesh, or the handshake fails, which is counted. At the address
that is only for gateways it must be in time as well. At an agent's address that is checked with each request instead
(`peers.enrollment.rejection_of`): a certificate that has ended may still ask for its renewal, and a connection may
outlive its certificate.

A client checks that it reached the very site it meant, whatever the address: `server_hostname` is the host name
of the site in its certificate (`certificates.dns_name`).

Sessions are not resumed: a ticket would carry an old certificate past its end, and connections are kept warm
anyway. A server's context can be replaced while it serves: each handshake takes the current one.

Connections that have not finished their handshake are limited too, in all and per address. Otherwise a sender
that opens connections and stays silent would use up the file descriptors of the process, long before anything
counts them as clients.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from cheops.errors import CheopsError

if TYPE_CHECKING:
    from cheops.security.certificates import Identity
    from cheops.security.keyring import KeyFolder


TOO_MANY, TOO_MANY_OF_ONE = "too many connections", "too many connections of one address"
_AT_A_TIME = 64  # accepted before other tasks get a turn
_PAUSE_S = 0.2  # when the process has no file descriptors left
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_log = logging.getLogger(__name__)


class HandshakeLimits(Struct, frozen=True):
    """Limits on TLS handshakes."""

    context: ssl.SSLContext
    handshake_s: float
    most: int  # handshakes at a time
    most_each: int  # of one address
    refused: Callable[[str, str], None]  # reason, address


class TlsAcceptor:
    """Accepts TLS connections. Belongs to one event loop; has the methods that uvicorn needs of a server."""

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], limits: HandshakeLimits
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._protocol = protocol
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()
        self._is_closed = False
        listening.setblocking(False)
        self._listen()

    @property
    def handshakes(self) -> int:
        """How many are under way."""
        return len(self._tasks)

    def close(self) -> None:
        """Accept no more, close the socket, and abort handshakes that are under way."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_A_TIME):
            try:
                one, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            self._take(one, str(address[0]))

    def _cannot_accept(self, error: OSError) -> None:
        """No file descriptors are left. Retry after a pause: the socket stays readable, so the loop would spin."""
        if error.errno not in _NO_RESOURCES:
            _log.error("no connection can be accepted: %s", error)
        else:
            _log.warning("no more connections can be accepted for now: %s", error.strerror)
        self._loop.remove_reader(self._listening)
        self._loop.call_later(_PAUSE_S, self._listen)

    def _take(self, one: socket.socket, address: str) -> None:
        reason = ""
        if len(self._tasks) >= self._limits.most:
            reason = TOO_MANY
        elif self._by_address[address] >= self._limits.most_each:
            reason = TOO_MANY_OF_ONE
        if reason:
            one.close()  # without a response: before the handshake none can be sent
            self._limits.refused(reason, address)
            return
        one.setblocking(False)
        self._by_address[address] += 1
        task = self._loop.create_task(self._handshake(one))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finish_handshake(done, address))

    async def _handshake(self, one: socket.socket) -> None:
        """The context counts a handshake that fails: only it knows why (see `_counting`)."""
        try:
            with contextlib.suppress(OSError, TimeoutError, CheopsError):  # ssl.SSLError is an OSError
                await self._loop.connect_accepted_socket(
                    self._protocol,
                    one,
                    ssl=self._limits.context,
                    ssl_handshake_timeout=self._limits.handshake_s,
                )
        except BaseException:
            one.close()
            raise

    def _finish_handshake(self, task: asyncio.Task[None], address: str) -> None:
        self._tasks.discard(task)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if not task.cancelled() and (error := task.exception()):
            _log.error("cannot accept a connection", exc_info=error)


_MOST_KNOWN = 1_024  # certificates, parsed once and not for each connection


def identity_at(transport: asyncio.BaseTransport) -> "Identity | None":
    """None without TLS, or without a certificate; raises CertificateError if it is not a certificate of a site."""
    der = certificate_at(transport)
    return identity_in(der) if der else None


def certificate_at(transport: asyncio.BaseTransport) -> bytes | None:
    """The certificate of the other side, in DER."""
    connection = transport.get_extra_info("ssl_object")
    return connection.getpeercert(binary_form=True) if connection else None


@lru_cache(_MOST_KNOWN)
def identity_in(der: bytes) -> "Identity":
    """The site of a certificate; raises CertificateError if it is not one of a site."""
    from cheops.security.certificates import identity_of  # noqa: PLC0415 - only where there is TLS

    return identity_of(der)


WRONG_AUTHORITY, EXPIRED = "certificate of unknown authority", "expired certificate"
ANOTHER_SITE = "another site at its address"
BAD_CERTIFICATE, BAD_HANDSHAKE = "bad certificate", "failed TLS handshake"
NO_CERTIFICATE = "no certificate"
_EXPIRED = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_HOSTNAME_MISMATCH = 62
_UNKNOWN = (2, 18, 19, 20, 21, 24)  # no issuer, self-signed, not verifiable, not an authority


def reason_of(code: int) -> str:
    """Why a certificate is refused, by OpenSSL's number for it."""
    if code in _EXPIRED:
        return EXPIRED
    if code == _HOSTNAME_MISMATCH:
        return ANOTHER_SITE
    return WRONG_AUTHORITY if code in _UNKNOWN else BAD_CERTIFICATE


_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which Python does not name
_NONE_SHOWN = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
Count = Callable[[str, str, str | None], None]  # reason, detail, the host name that was requested


def server_context(folder: "KeyFolder", *, sites_only: bool = False) -> ssl.SSLContext:
    """For incoming connections: from anyone, or only from sites, which show a certificate."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder, time.time())
    context.verify_mode = ssl.CERT_REQUIRED if sites_only else ssl.CERT_OPTIONAL
    if not sites_only:
        context.verify_flags |= _NO_CHECK_TIME
    context.num_tickets = 0  # no session resumption, see above
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(folder: "KeyFolder", count: Count | None = None) -> ssl.SSLContext:
    """For connections to other sites; give `server_hostname=dns_name(site)`."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, folder, time.time())
    if count:
        context.sslobject_class = _counting(count)
    context.set_alpn_protocols(["http/1.1"])
    return context


class ServerContext:
    """A server context whose certificate can be replaced while it serves, and which counts failed handshakes."""

    def __init__(self, folder: "KeyFolder", count: Count, *, sites_only: bool = False) -> None:
        self._sites_only = sites_only
        # Python cannot replace the certificate of a context that serves. The SNI callback, which runs in each handshake
        # even without SNI, replaces the context of the connection instead.
        self._current = server_context(folder, sites_only=sites_only)
        self.context = server_context(folder, sites_only=sites_only)
        self.context.sni_callback = self._choose
        self.context.sslobject_class = _counting(count)

    def replace(self, folder: "KeyFolder") -> None:
        """From the next handshake on; open connections stay as they are."""
        self._current = server_context(folder, sites_only=self._sites_only)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def _context(protocol: int, folder: "KeyFolder", now_s: float) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Strict, as the default of Python 3.13: no certificate without the extensions that RFC 5280 requires.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    # Where the time is not checked, an authority that has ended must not count either.
    authorities = folder.authorities.valid_at(now_s)
    if authorities.certificates:  # otherwise no certificate is accepted
        context.load_verify_locations(cadata=authorities.pem.decode("ascii"))
    context.load_cert_chain(folder.certificate_file, folder.key_file)
    return context


def _counting(count: Count) -> type[ssl.SSLObject]:
    class Counting(ssl.SSLObject):
        """The event loop closes a connection whose handshake fails, and reports nothing."""

        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLCertVerificationError as error:
                count(reason_of(error.verify_code), error.verify_message, self.server_hostname)
                raise
            except ssl.SSLError as error:
                reason = NO_CERTIFICATE if error.reason == _NONE_SHOWN else BAD_HANDSHAKE
                count(reason, error.reason or "", self.server_hostname)
                raise

    return Counting
