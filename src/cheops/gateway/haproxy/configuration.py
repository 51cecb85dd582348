"""HAProxy's configuration and all files it reads, rendered from a layout. Pure but for reading the keyring's files.

Each upstream has a backend with two servers: the upstream, always tried first, and the agent, which gets the requests
that certainly did not reach it (and, where another site may follow, those that may be repeated).
"""

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from cheops.config.gateway import ForwardedHeaders
from cheops.gateway.connection import PROBE_S, PROBES, SILENCE_S, UpstreamAddress
from cheops.gateway.cors import ALLOW_ORIGIN, EXPOSE_HEADER
from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.haproxy.frontends import (
    AUTHORITIES,
    CERTIFICATE,
    REFUSED,
    RING,
    SENDERS,
    client_frontend,
    escaped,
    in_pattern,
    listed,
    mesh_frontend,
    outbound_frontend,
)
from cheops.gateway.haproxy.layout import Layout, PeerLayout, ServiceLayout
from cheops.gateway.headers import EFFECT, PEER_CERTIFICATE, SITE, encode_name, via_name
from cheops.gateway.responses import MEDIA_TYPE
from cheops.gateway.service_tls import listener_files, upstream_files

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring


# HAProxy's own error statuses: the status and text of the response, and whether the request had no effect.
_ERRORS = {
    400: (400, "the request is not HTTP/1.1, or is ambiguous", True),
    408: (408, "the request did not come in time", True),
    413: (413, "the request is too large", True),
    500: (500, "HAProxy failed; see gateway/haproxy.log in the data directory of the site", False),
    502: (
        502,
        "the service closed the connection or did not send HTTP; the request may have been executed",
        False,
    ),
    503: (503, "this needs the agent, which does not respond; it may be starting", True),
    504: (504, "the service did not respond in time; the request may have been executed", False),
}


# HAProxy does not try the agent, as it does for all other failures, if the certificate of a service has another name
# than the one it asked for by SNI. So this is its 503 for services with TLS.
_TLS_ERROR = (
    502,
    "the service has a certificate for another name, or neither it nor the agent responds; see 'cheops check'",
    True,
)
_TLS_FILE = "tls.http"


def error_files(here: str) -> dict[str, bytes]:
    """The error responses that HAProxy sends by itself: file names and contents."""
    files = {f"{status}.http": _error_response(here, *error) for status, error in _ERRORS.items()}
    return {**files, _TLS_FILE: _error_response(here, *_TLS_ERROR)}


def _error_response(here: str, status: int, detail: str, had_no_effect: bool) -> bytes:
    phrase = HTTPStatus(status).phrase
    fault = "client" if status < 500 else "us" if status in (500, 503) else "application"
    problem = {"type": "about:blank", "title": phrase, "status": status, "detail": detail, "fault": fault}
    body = msgspec.json.encode({**problem, "definite": status < 500})
    lines = [
        f"HTTP/1.1 {status} {phrase}",
        f"Content-Type: {MEDIA_TYPE}",
        "Cache-Control: no-store",
        f"{SITE}: {encode_name(here)}",
        *([f"{EFFECT}: none"] if had_no_effect else []),
        *(["Connection: close"] if status < 500 else []),
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


CONFIG, PID, LOG = "haproxy.cfg", "haproxy.pid", "haproxy.log"
MASTER, WORKER = "master.sock", "worker.sock"
ERRORS = (400, 408, 413, 500, 502, 503, 504)
_AFTER_CLIENTS_S = 0.5  # a client that is too slow is reported before the service's timeout hides it
_AGENT_TRIES = 3
_REWRITE_BYTES = 2 * 1024  # of a buffer, for headers that are added
_MAX_HEADERS = 1_024
_OLD_WORKER_S = 600  # how long one may go on with what it has, after a reload


def render(layout: Layout) -> str:
    lines = [*_global(layout), *_defaults(layout)]
    for service in layout.services:
        lines += client_frontend(service, layout.head_size_bytes)
        lines += _agent(layout, service, haproxy_names.agent_of(service.name), haproxy_names.front_socket(service.name))
        if service.outbound:
            lines += outbound_frontend(service, service.outbound, layout)
            calls = haproxy_names.calls_of(service.name), haproxy_names.calls_socket(service.name)
            lines += _agent(layout, service, *calls)
        lines += _own(layout, service)
    lines += [*mesh_frontend(layout), *_mesh_agent(layout)]
    services = {one.name: one for one in layout.services}
    for peer in layout.peers:
        lines += _peer(layout, services[peer.service], peer)
    return "\n".join(lines) + "\n"


def _global(layout: Layout) -> Iterator[str]:
    # A head that does not fit into the buffer gets HAProxy's own 400, in HTML, which no setting changes. So twice the
    # limit fits, and what is above the limit goes to the agent, which refuses it (see frontends.unusual).
    buffer = max(32 * 1024, 2 * layout.head_size_bytes) + _REWRITE_BYTES
    yield f"# Written by the agent of {quote(layout.here)}; it is written anew whenever something changes."
    yield "global"
    yield f"  stats socket unix@{WORKER} mode 600 level admin expose-fd listeners"
    yield f"  maxconn {layout.connections}"
    yield f"  nbthread {layout.threads}"
    yield f"  tune.bufsize {buffer}"
    yield f"  tune.maxrewrite {_REWRITE_BYTES}"
    yield f"  tune.http.maxhdr {_MAX_HEADERS}"  # the default is 101, and one more gets that 400, too
    yield f"  hard-stop-after {_OLD_WORKER_S}s"
    yield "  close-spread-time infinite"  # close no idle connection on a reload: clients leave by MOVED
    if layout.certificates:
        yield f"  # certificates {layout.certificates}"
    for service in layout.services:
        if service.tls_version:
            yield f"  # certificates of {haproxy_names.slug(service.name)}: {service.tls_version}"
    yield "  tune.ssl.cachesize 0"  # sessions are not resumed: they would outlive their certificates
    for ring, size in ((RING, 400_000), (REFUSED, 50_000)):
        yield f"ring {ring}"
        yield "  format raw"
        yield "  maxlen 1500"
        yield f"  size {size}"


def _defaults(layout: Layout) -> Iterator[str]:
    yield "defaults"
    yield "  mode http"
    yield "  option http-keep-alive"
    yield "  option dontlognull"
    yield "  option http-ignore-probes"
    yield "  option abortonclose"
    yield "  option disable-h2-upgrade"
    yield f"  timeout connect {_ms(layout.connect_timeout_s)}"
    yield f"  timeout client {_ms(layout.stall_timeout_s)}"
    yield f"  timeout http-request {_ms(layout.head_timeout_s)}"
    yield f"  timeout http-keep-alive {_ms(layout.keep_alive_s)}"
    yield f"  timeout tunnel {_ms(layout.tunnel_timeout_s)}"
    yield f"  timeout server {_ms(layout.silence_timeout_s)}"
    for status in ERRORS:
        yield f"  errorfile {status} {status}.http"


def _agent(layout: Layout, service: ServiceLayout, name: str, at: str) -> Iterator[str]:
    yield f"backend {name}"
    yield from _tries()
    yield (
        "  http-response set-header connection close if { var(txn.odd) -m bool } { status 400 431 501 505 } "
        "{ res.fhdr(content-type) -m str application/problem+json }"
    )
    yield f"  timeout server {_ms(_longest(layout, service))}"
    yield f"  server agent unix@{at} id 2 send-proxy"


def _tries() -> Iterator[str]:
    """A safe request is sent to the agent again if that was killed meanwhile. Without this, HAProxy would close the
    client's connection without a response."""
    yield f"  retries {_AGENT_TRIES}"
    yield "  retry-on conn-failure empty-response"
    yield "  http-request disable-l7-retry if !{ method GET HEAD OPTIONS }"


def _mesh_agent(layout: Layout) -> Iterator[str]:
    if layout.mesh is None:
        return
    yield f"backend {haproxy_names.MESH_AGENT}"
    yield from _tries()
    # set-header replaces what a client may have sent, and the agent believes this header only at this socket.
    yield f"  http-request set-header {PEER_CERTIFICATE} %[ssl_c_der,base64]"
    yield f"  timeout server {_ms(max(_longest(layout, service) for service in layout.services))}"
    yield f"  server agent unix@{haproxy_names.MESH_SOCKET} id 2 send-proxy"


def _own(layout: Layout, service: ServiceLayout) -> Iterator[str]:
    address, name = service.own, service.name
    tls = ""
    if address.is_tls:
        tls = _upstream_tls(service)
    for backend, is_followed, again in (
        (haproxy_names.own_of(name), False, haproxy_names.again_socket(name)),
        (haproxy_names.own_or_of(name), True, haproxy_names.again_socket(name)),
        (haproxy_names.sent_of(name), False, haproxy_names.again_sent_socket(name)),
        (haproxy_names.unknown_of(name), False, haproxy_names.again_socket(name)),
    ):
        if backend == haproxy_names.unknown_of(name) and not service.counts_unknown_calls:
            continue
        yield from _backend(layout, service, backend, is_followed=is_followed)
        if address.is_tls:
            yield f"  errorfile 503 {_TLS_FILE}"
        if backend == haproxy_names.sent_of(name):  # the application must not see the headers between gateways
            yield "  http-request del-header cheops -m beg"
        yield from _passed_on(layout, address.path)
        yield from _answered(layout, layout.here)
        yield from _servers(layout, again, address if service.is_direct else None, tls)


def _upstream_tls(service: ServiceLayout) -> str:
    tls, name = service.own.tls, service.own.host
    if tls is None:
        return f" ssl verify required ca-file @system-ca verifyhost {name} sni str({name})"
    name = tls.server_name or name
    authorities = haproxy_names.upstream_authorities(service.name) if tls.ca else "@system-ca"
    shown = f" crt {haproxy_names.upstream_certificate(service.name)}" if tls.client_cert else ""
    return f" ssl verify required ca-file {authorities} verifyhost {name} sni str({name}){shown}"


def _peer(layout: Layout, service: ServiceLayout, peer: PeerLayout) -> Iterator[str]:
    for name, is_followed in (
        (haproxy_names.peer_of(peer.service, peer.site), False),
        (haproxy_names.peer_or_of(peer.service, peer.site), True),
    ):
        yield from _backend(layout, service, name, is_followed=is_followed)
        if service.dropped and not is_followed:
            yield from _without_credentials(service.dropped)
        yield from _passed_on(layout, peer.address.path)
        yield f"  http-request add-header cheops-hop {escaped(encode_name(layout.here))}"
        yield f"  http-request add-header cheops-service {escaped(encode_name(peer.service))}"
        yield from _answered(layout, peer.site)
        yield "  option srvtcpka"
        yield f"  srvtcpka-idle {SILENCE_S}s"
        yield f"  srvtcpka-intvl {PROBE_S}s"
        yield f"  srvtcpka-cnt {PROBES}"
        options = f" tcp-ut {SILENCE_S}s"
        if peer.host:
            options += (
                f" ssl verify required ca-file {AUTHORITIES} crt {CERTIFICATE} verifyhost {peer.host} "
                f"sni str({peer.host}) alpn http/1.1 ssl-min-ver TLSv1.3 no-ssl-reuse no-tls-tickets"
            )
        yield from _servers(layout, haproxy_names.again_socket(peer.service), peer.address, options)


def _without_credentials(names: tuple[str, ...]) -> Iterator[str]:
    yield "  acl dropped var(txn.dropped) -m bool"
    yield f"  http-request set-var(txn.dropped) bool(true) if {{ req.hdr_names -m reg '{listed(names)}' }}"
    yield f"  http-request del-header '^(?:{'|'.join(map(in_pattern, names))})$' -m reg if dropped"
    yield "  http-response add-header cheops-credentials dropped if dropped { srv_id 1 }"


def _backend(layout: Layout, service: ServiceLayout, name: str, *, is_followed: bool) -> Iterator[str]:
    yield f"backend {name}"
    yield "  balance roundrobin"
    yield "  retries 1"
    yield "  option redispatch 1"
    if is_followed:  # only here: to keep a request for a retry costs half as much as to forward it
        yield "  retry-on conn-failure empty-response response-timeout 0rtt-rejected 502 503 504"
    yield f"  timeout server {_ms(_longest(layout, service))}"


def _passed_on(layout: Layout, base: str) -> Iterator[str]:
    """Headers for the next program, the same as the agent's own proxy adds."""
    scope = "%[var(txn.to),field(2,|),url_dec]"
    yield "  acl is_spelled_out var(txn.to),field(2,|) -m len gt 0"
    yield f"  http-request set-header scope {scope} if {{ var(txn.to) -m sub | }} is_spelled_out"
    if base:
        yield f"  http-request set-pathq {_quoted(base)}%[pathq]"
    yield f'  http-request add-header via "1.1 {escaped(via_name(layout.here))}"'
    if layout.forwarded_headers is not ForwardedHeaders.NOTHING:
        yield "  http-request add-header x-forwarded-for %[var(sess.client)]"
    if layout.forwarded_headers is not ForwardedHeaders.ALL:
        return
    yield "  acl has_proto req.fhdr_cnt(x-forwarded-proto) gt 0"
    yield "  acl has_host req.fhdr_cnt(x-forwarded-host) gt 0"
    yield '  http-request add-header forwarded "%[var(sess.for)];proto=%[var(sess.proto)];host=\\"%[req.fhdr(host)]\\""'
    yield "  http-request add-header x-forwarded-proto %[var(sess.proto)] if !has_proto"
    yield "  http-request add-header x-forwarded-host %[req.fhdr(host)] if !has_host"


def _answered(layout: Layout, site: str) -> Iterator[str]:
    yield "  http-response allow if { srv_id 2 }"  # the agent has done all of it
    if site == layout.here:
        yield "  http-response del-header cheops -m beg"
    unless_set = "" if site == layout.here else " if !{ res.fhdr_cnt(cheops-site) gt 0 }"
    yield f"  http-response add-header cheops-site {escaped(encode_name(site))}{unless_set}"
    yield f'  http-response add-header via "1.1 {escaped(via_name(layout.here))}"'
    yield "  http-response del-header keep-alive"
    if site == layout.here:
        name, value = EXPOSE_HEADER
        is_shared = f"{{ res.fhdr_cnt({ALLOW_ORIGIN.lower()}) gt 0 }}"
        yield f'  http-response add-header {name.lower()} "{value}" if {is_shared}'


def _servers(layout: Layout, again: str, address: UpstreamAddress | None, options: str) -> Iterator[str]:
    """Without an address, the agent alone."""
    if address is None:
        yield f"  server agent unix@{again} id 2 send-proxy"
        return
    host = f"[{address.host}]" if ":" in address.host else address.host
    pool = f"pool-max-conn {layout.warm} pool-purge-delay {_ms(layout.warm_for_s)}"
    yield "  use-server first if TRUE"
    yield f"  server first {host}:{address.port} id 1 init-addr last,libc,none {pool}{options}"
    yield f"  server agent unix@{again} id 2 send-proxy"


def _longest(layout: Layout, service: ServiceLayout) -> float:
    """HAProxy has one timeout for the beginning of a response and for pauses within it."""
    longest_s = max(layout.silence_timeout_s, layout.stall_timeout_s, service.answer_s)
    return longest_s + _AFTER_CLIENTS_S


def _quoted(text: str) -> str:
    return '"' + "".join("%%" if c == "%" else f"\\{c}" if c in '\\"$' else c for c in text) + '"'


def _ms(seconds: float) -> str:
    return f"{max(int(seconds * 1000), 1)}ms"


def used_maps(layout: Layout) -> frozenset[str]:
    """The maps that a rule of the configuration mentions. HAProxy knows no others, and refuses changes of them."""
    return frozenset(re.findall(r"map\(([^,)]+)", render(layout)))


def _certificate_files(service: ServiceLayout) -> Iterator[tuple[str, bytes]]:
    """The certificates of a service, as they were when they could be used last."""
    if service.tls:
        material = listener_files(service.tls).current()
        yield haproxy_names.listener_certificate(service.name), material.certificate
        yield haproxy_names.listener_authorities(service.name), material.authorities
    if service.own.tls and service.is_direct:
        material = upstream_files(service.own.tls).current()
        yield haproxy_names.upstream_certificate(service.name), material.certificate
        yield haproxy_names.upstream_authorities(service.name), material.authorities


def all_files(layout: Layout, keyring: "Keyring | None") -> dict[str, bytes]:
    flows = (haproxy_names.map_of(service.name) for service in layout.services)
    maps = (SENDERS, haproxy_names.SERVICES, haproxy_names.CARRIED, *flows)
    files = {**error_files(layout.here), **dict.fromkeys(maps, b"")}
    if keyring is not None:
        folder = keyring.folder
        files[CERTIFICATE] = folder.certificate_file.read_bytes() + folder.key_file.read_bytes()
        files[AUTHORITIES] = folder.authorities.pem
    for service in layout.services:
        files |= dict(_certificate_files(service))
    files[CONFIG] = render(layout).encode()
    return files
