"""Whether a service accepts connections, for `cheops check`: with TLS, by a real handshake, and what to set."""

import asyncio
import ssl

from cheops.backends.protocol import Finding
from cheops.config.services import ServiceConfig
from cheops.gateway.connection import UpstreamAddress, service_address
from cheops.gateway.service_tls import (
    BAD_CLIENT_CERTIFICATE,
    EXPIRED,
    NO_CLIENT_CERTIFICATE,
    NOT_TLS,
    NOT_YET,
    UNKNOWN_AUTHORITY,
    WRONG_NAME,
    CertificateFileError,
    tls_failure,
    upstream_files,
)
from cheops.text import listed

_CONNECT_S = 2.0
_ALERT_S = 0.5  # after the handshake, for a server that then refuses the certificate of a client


async def service_finding(service: ServiceConfig) -> Finding:
    """What a connection to the service shows."""
    name, url = service.name, service.url
    address = service_address(service)
    try:
        seen = await asyncio.wait_for(_connect(address), _CONNECT_S)
    except CertificateFileError as error:
        hint = f"fix the files of 'services.{name}': ca, client_cert and client_key"
        return _failed(service, str(error), hint)
    except ssl.SSLError as error:
        shows_certificate = service.upstream_tls.client_cert is not None
        why = tls_failure(error, shows_certificate=shows_certificate)
        return _failed(service, f"{url}: {why}", await _tls_hint(service, address, why))
    except (OSError, TimeoutError) as error:
        return _failed(service, f"{url}: {error or 'no answer'}", f"start the service, or fix 'services.{name}.url'")
    if problem := upstream_files(service.upstream_tls).problem if address.tls else "":
        return _failed(service, problem, "the agent uses what it read before; fix the files")
    return Finding(f"{name} accepts connections", f"{url}{seen}", group="services")


def _failed(service: ServiceConfig, detail: str, hint: str) -> Finding:
    return Finding(f"{service.name} accepts connections", detail, hint, group="services")


async def _connect(address: UpstreamAddress) -> str:
    """What is to be said about TLS. Raises OSError, ssl.SSLError or CertificateFileError."""
    if address.tls is None:
        _reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.close()
        return ""
    context = upstream_files(address.tls).current().context
    name = address.tls.server_name or address.host
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context, server_hostname=name)
    try:
        await asyncio.wait_for(reader.read(1), _ALERT_S)
    except TimeoutError:
        pass  # it waits for a request, as it should
    finally:
        version = writer.get_extra_info("ssl_object").version()
        writer.transport.abort()
    return f" ({version}, certificate of {name})"


async def _tls_hint(service: ServiceConfig, address: UpstreamAddress, why: str) -> str:
    key = f"services.{service.name}"
    if why == WRONG_NAME:
        names = await _names(address)
        shown = f"it is for {listed(names)}: " if names else ""
        return f"{shown}set '{key}.server_name' to a name in it, or use that name in '{key}.url'"
    ca = service.upstream_tls.ca
    hints = {
        UNKNOWN_AUTHORITY: f"'{key}.ca' ({ca}) is not the authority of this service: name the right one there"
        if ca
        else f"set '{key}.ca' to the file with the certificate of its authority",
        EXPIRED: "renew the certificate of the service, or set the clock of this machine",
        NOT_YET: "set the clock of this machine, or renew the certificate of the service",
        NOT_TLS: f"write http:// in '{key}.url', or have the service speak TLS",
        BAD_CLIENT_CERTIFICATE: f"'{key}.client_cert' must be a certificate that the service accepts",
        NO_CLIENT_CERTIFICATE: f"set '{key}.client_cert' and '{key}.client_key'",
    }
    found = next((hint for text, hint in hints.items() if text in why), None)
    return found or f"fix the TLS settings of the service, or 'ca', 'client_cert' and 'server_name' of '{key}'"


async def _names(address: UpstreamAddress) -> list[str]:
    """The names in the certificate of a service whose authority is known."""
    tls = address.tls
    if tls is None:
        return []
    context = upstream_files(tls).load().context
    context.check_hostname = False
    try:
        opened = asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname=tls.server_name or None
        )
        _reader, writer = await asyncio.wait_for(opened, _CONNECT_S)
    except (OSError, TimeoutError):
        return []
    found = writer.get_extra_info("peercert") or {}
    writer.transport.abort()
    return [str(value) for _kind, value in found.get("subjectAltName", ())]
