"""TLS 1.3 between sites, and for people who connect to one.

A server asks for a certificate and takes a connection without one: people and programs have none, and show a
token. One that is shown must be of the mesh and in time, or the handshake fails, which is counted. A
client checks that it reached the very site that it meant, whatever the address: by the host name that stands
for that site (`names.dns_name`), given as `server_hostname`.

Sessions are not resumed: a ticket would carry an old certificate past its end, and connections are kept warm
anyway. A server's context can be replaced while it serves: each handshake takes the one that is current.
"""

import ssl
from collections.abc import Callable

from cheops.security.folder import Folder
from cheops.security.handshakes import BAD_HANDSHAKE, NO_CERTIFICATE, reason_of

_NONE_SHOWN = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
Count = Callable[[str, str, str | None], None]  # reason, detail, the host name that was asked for


def server_context(folder: Folder, *, sites_only: bool = False) -> ssl.SSLContext:
    """For connections that are accepted with this certificate: of anybody, or of those who show one."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, folder)
    context.verify_mode = ssl.CERT_REQUIRED if sites_only else ssl.CERT_OPTIONAL
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(folder: Folder, count: Count | None = None) -> ssl.SSLContext:
    """For connections to other sites; give `server_hostname=dns_name(site)`."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, folder)
    if count:
        context.sslobject_class = _counting(count)
    context.set_alpn_protocols(["http/1.1"])
    return context


class ServerContext:
    """A context that stays while what it serves with is replaced, and counts the handshakes it refused."""

    def __init__(self, folder: Folder, count: Count, *, sites_only: bool = False) -> None:
        self._sites_only = sites_only
        self._current = server_context(folder, sites_only=sites_only)
        self.context = server_context(folder, sites_only=sites_only)
        self.context.sni_callback = self._choose
        self.context.sslobject_class = _counting(count)

    def replace(self, folder: Folder) -> None:
        """From the next handshake on; connections that are there stay as they are."""
        self._current = server_context(folder, sites_only=self._sites_only)

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def _context(protocol: int, folder: Folder) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=folder.authorities.pem.decode("ascii"))
    context.load_cert_chain(folder.certificate_file, folder.key_file)
    return context


def _counting(count: Count) -> type[ssl.SSLObject]:
    class Counting(ssl.SSLObject):
        """Nobody else hears of a handshake that failed: the loop closes the connection, and that is all."""

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
