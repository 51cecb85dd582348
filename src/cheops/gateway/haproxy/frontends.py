"""HAProxy frontends: the part of the configuration that decides where a request goes. Pure.

One regular expression over the head decides whether the agent must see a request, and one lookup in the service's map
where it goes. Every request runs these lines, so rare cases have a condition that fails at once for all others.
"""

from collections.abc import Iterator
from urllib.parse import quote

from cheops.config.address import Address
from cheops.config.gateway import UnknownCalls
from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.haproxy.layout import Layout, ServiceLayout

SENDERS, MESH = "senders.map", "mesh"
RING, REFUSED = "requests", "refused"
CERTIFICATE, AUTHORITIES = "site-and-key.pem", "authorities.pem"

# Headers for which the agent must see a request: those that two programs could read differently, that belong to one
# connection, or that belong to the mesh. One expression finds them, and ids of replicants, in the whole head at once.
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.~!$&\x27()*+;=%-]*)(?::[0-9]{0,5})?"
NAMES = (
    "cheops",
    "access-control-request-method:",  # see gateway.cors
    "connection:",
    "content_length:",
    "forwarded_",
    "host_",
    "http2-settings:",
    "keep-alive:",
    "proxy-",
    "te:",
    "transfer-encoding:",  # after chunks there may be trailers, which HAProxy does not look at
    "transfer_encoding:",
    "upgrade:",
    "x_forwarded",
    "x-forwarded_",
)
_SENT_ON = ("cheops-(?!hop:|service:)", "cheops_", *NAMES[1:])  # by another gateway
_VALUES = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[cC]4[eE]095[aA]1-"
_IS_HOSTLESS = rf"\A(?!(?s:.*?)^host: {_HOST}\r$)"
_BODIES = "json|x-www-form-urlencoded"
_TARGET = r"^/(?!.*[cC]4[eE]095[aA]1-)"
REPEATABLE = "{ method GET HEAD OPTIONS PUT DELETE }"
_CONNECTION_SHARES = 4  # one source address gets at most a quarter of the connections
_BUSY_PER_S, _ONE_IN = 200, 100  # from so many requests per second on, only one in so many is logged

# After a reload, clients leave the old worker, whose configuration is outdated, with their next response.
MOVED = "  http-after-response set-header connection close if { stopping } !{ status 101 }"


def unusual(names: tuple[str, ...], once: tuple[str, ...], head_size_bytes: int) -> str:
    """A pattern for heads with one of `names`, with one of `once` twice, or larger than this, in steps of 1 KiB."""
    twice = "".join(f"|^{name}:(?s:.*?)^{name}:" for name in once)
    large = rf"\A(?s:.{{1024}}){{{max(head_size_bytes // 1024, 1)}}}"
    return rf"(?m){_IS_HOSTLESS}|{large}|^(?:{'|'.join(names)}){twice}|{_VALUES}"


def client_frontend(service: ServiceLayout, head_size_bytes: int) -> Iterator[str]:
    agent, flows = haproxy_names.agent_of(service.name), haproxy_names.map_of(service.name)
    yield f"frontend in.{haproxy_names.slug(service.name)}"
    yield f"  bind {bind_address(service.listen)}{_listener_tls(service)}"
    yield MOVED
    yield f"  acl unusual req.hdrs -m reg '{unusual(NAMES, ('scope',), head_size_bytes)}'"
    yield from _sent_on_acls(head_size_bytes)
    yield "  acl scoped var(txn.scope) -m found"
    yield from about_client(service.listen, "https" if service.tls else "http")
    yield "  http-request set-var(txn.scope) req.fhdr(scope),url_enc"
    yield from request_log_lines(service)
    yield f"  http-request set-var(txn.to) var(txn.scope),map({flows})"
    yield f"  http-request set-var(txn.to) str({haproxy_names.LOCAL_KEY}),map({flows}) if !scoped"
    # For nearly all requests evaluation ends here: the lines below would not change where they go.
    carrying = ""
    if service.carriers:
        marked = f"req.hdr_names -m reg '{listed(service.carriers)}'"
        yield f"  acl carrying {'always_true' if service.marks_all else marked}"
        carrying = " !carrying"
    yield f"  acl plain_flow var(txn.to) -m reg '{haproxy_names.WITHOUT_EXCEPTIONS}'"
    yield f"  http-request allow if plain_flow plain_target plain_line !unusual{carrying}"
    yield from _sent_on(flows, agent)
    yield f"  http-request set-var(txn.to) str({agent}) if !{{ var(txn.to) -m found }}"
    yield from exceptions(service, agent)
    yield f"  http-request set-var(txn.to) str({haproxy_names.sent_of(service.name)}) if sent is_own"
    yield "  use_backend %[var(txn.to),field(1,|)]"
    yield f"  default_backend {agent}"


def mesh_frontend(layout: Layout) -> Iterator[str]:
    """The frontend for other gateways. The agent verifies each certificate the first time, and then enters it with the
    name of its site into the map SENDERS."""
    if layout.mesh is None:
        return
    yield f"frontend {MESH}"
    yield (
        f"  bind {bind_address(layout.mesh)} ssl crt {CERTIFICATE} ca-file {AUTHORITIES} verify required "
        "ssl-min-ver TLSv1.3 alpn http/1.1 no-tls-tickets"
    )
    yield MOVED
    # An address that opens connections and sends nothing must leave some for sites at other addresses.
    yield "  stick-table type ipv6 size 20k expire 2m store conn_cur"
    yield "  tcp-request connection track-sc0 src"
    most = max(1, layout.connections // _CONNECTION_SHARES)
    yield f"  tcp-request connection reject if {{ sc0_conn_cur gt {most} }}"
    yield f"  log ring@{REFUSED} format raw local0"
    yield "  no option dontlognull"  # a connection without a request may be a refused handshake
    yield '  error-log-format "%Ts%ms %rt %ci %[ssl_c_err] %[ssl_fc_err_str,url_enc]"'
    yield "  http-request set-log-level silent"
    yield from about_client(layout.mesh)
    yield "  tcp-request session set-var(sess.shown) ssl_c_der,sha2(256),hex"
    yield from _sent_on_acls(layout.head_size_bytes)
    yield f"  acl believed req.fhdr(cheops-hop),concat(|,sess.shown),map({SENDERS}) -m found"
    yield (
        f"  http-request set-var(txn.to) req.fhdr(cheops-service),map({haproxy_names.SERVICES}) "
        "if believed plain_target plain_line !unusual_for_gateway"
    )
    to_agent = f"  http-request set-var(txn.to) str({haproxy_names.MESH_AGENT}) if"
    yield f"  acl is_without_bodies var(txn.to) -m end |{haproxy_names.NO_BODIES}"
    yield f"{to_agent} is_without_bodies {{ req.fhdr(content-type) -m reg -i {_BODIES} }}"
    carriers = tuple(sorted({name for service in layout.services for name in service.carriers}))
    if any(service.marks_all for service in layout.services):
        yield f"{to_agent} TRUE"
    elif carriers:
        yield f"{to_agent} {{ req.hdr_names -m reg '{listed((*carriers, 'scope'))}' }}"
    yield "  use_backend %[var(txn.to),field(1,|)] if { var(txn.to) -m found }"
    yield f"  default_backend {haproxy_names.MESH_AGENT}"


def bind_address(address: Address) -> str:
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"


def _listener_tls(service: ServiceLayout) -> str:
    if service.tls is None:
        return ""
    clients = f" ca-file {haproxy_names.listener_authorities(service.name)} verify required"
    shown = haproxy_names.listener_certificate(service.name)
    return f" ssl crt {shown} ssl-min-ver TLSv1.2 alpn http/1.1{clients if service.tls.client_ca else ''}"


def about_client(listen: Address, proto: str = "http") -> Iterator[str]:
    """Headers with the client's address. Prepared once per connection: to format an address costs more than to add a
    header."""
    remembered = "  tcp-request session set-var-fmt"
    yield f"{remembered}(sess.client) %[src]"
    yield f"  tcp-request session set-var(sess.proto) str({proto})"
    if ":" in listen.host:
        yield f'{remembered}(sess.for) "for=\\"[%[src]]\\"" if {{ src -m sub : }}'
        yield f"{remembered}(sess.for) for=%[src] if !{{ src -m sub : }}"
    else:
        yield f"{remembered}(sess.for) for=%[src]"


def request_log_lines(service: ServiceLayout, scope: str = "txn.scope") -> Iterator[str]:
    """Log requests with a scope to a ring in HAProxy's memory (see counters). At a high rate only some of them, or the
    ring would hold the last second only."""
    name = escaped(quote(service.name))
    yield f"  log ring@{RING} format raw local0"
    yield f'  log-format "%Ts%ms %rt {name} %b %s %ST %Ta %HM %[var({scope})] %[var(txn.path)]"'
    yield f"  acl is_busy fe_req_rate ge {_BUSY_PER_S}"
    yield f"  acl is_left_out rand({_ONE_IN}) gt 0"
    yield "  acl is_kept var(txn.path) -m found"
    yield "  http-request set-var(txn.path) path,url_enc if !is_busy scoped || !is_left_out scoped"
    yield "  http-request set-log-level silent if !is_kept"


def _sent_on_acls(head_size_bytes: int) -> Iterator[str]:
    """Conditions under which the agent must see a request even if another gateway forwarded it. The pattern differs
    from that for clients: a gateway sends `Cheops-Hop` and `Cheops-Service`, a client must not."""
    once = ("scope", "cheops-hop", "cheops-service")
    yield f"  acl unusual_for_gateway req.hdrs -m reg '{unusual(_SENT_ON, once, head_size_bytes)}'"
    yield from plain_acls()


def plain_acls() -> Iterator[str]:
    """Conditions on the request line: HTTP/1.1, and a path without a meta-id."""
    yield "  acl plain_line req.ver 1.1"
    yield f"  acl plain_target url -m reg '{_TARGET}'"


def _sent_on(flows: str, agent: str) -> Iterator[str]:
    """An odd request goes to the agent, unless another gateway forwarded it (recognized by its name and address):
    that is served here, whatever its scope is."""
    yield "  acl odd var(txn.odd) -m bool"
    yield "  acl sent var(txn.sent) -m found"
    yield ("  http-request set-var(txn.odd) bool(true) if unusual || !plain_line || !plain_target")
    yield (
        f"  http-request set-var(txn.sent) req.fhdr(cheops-hop),concat(|,sess.client),map({SENDERS}) "
        "if odd plain_target plain_line !unusual_for_gateway"
    )
    yield f"  http-request set-var(txn.to) str({agent}) if odd"
    yield f"  http-request set-var(txn.to) str({haproxy_names.LOCAL_KEY}),map({flows},{agent}) if sent"
    yield "  http-request set-log-level silent if sent"


def exceptions(service: ServiceLayout, agent: str) -> Iterator[str]:
    """Requests that a flow is not for, though they have its scope."""
    to_agent = f"  http-request set-var(txn.to) str({agent}) if"
    yield "  acl is_own var(txn.to) -m beg own."
    yield "  acl is_followed var(txn.to) -m beg or."
    yield f"  acl is_without_bodies var(txn.to) -m end |{haproxy_names.NO_BODIES}"
    yield f"{to_agent} is_without_bodies {{ req.fhdr(content-type) -m reg -i {_BODIES} }}"
    # Only the agent can decide whether the next site may be tried for a request that must not run twice.
    yield f"{to_agent} is_followed !{REPEATABLE}"
    if service.dropped:  # HAProxy would drop them for the first target, and the next one may need them
        yield f"{to_agent} is_followed {{ req.hdr_names -m reg '{listed(service.dropped)}' }}"
    if service.carriers:  # the agent remembers their scope, and adds a carrier to a request without one
        yield f"{to_agent} is_own carrying || is_own scoped"


def listed(names: tuple[str, ...]) -> str:
    """A pattern that finds one of these in the comma-separated names of a request's headers."""
    return f"(?:^|,)(?:{'|'.join(map(in_pattern, names))})(?:,|$)"


def in_pattern(name: str) -> str:
    """The name of a header, which is a token, as part of a regular expression."""
    return "".join(c if c.isalnum() or c in "-_" else f"\\x{ord(c):02x}" for c in name.lower())


def escaped(text: str) -> str:
    """A text of percent-encoded characters where HAProxy looks for formats."""
    return text.replace("%", "%%")


_TRACE = r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"  # see carriers.TRACEPARENT


def outbound_frontend(service: ServiceLayout, outbound: Address, layout: Layout) -> Iterator[str]:
    carriers = layout.carriers  # those of all services
    agent, flows = haproxy_names.calls_of(service.name), haproxy_names.map_of(service.name)
    yield f"frontend out.{haproxy_names.slug(service.name)}"
    yield f"  bind {bind_address(outbound)}"
    yield MOVED
    yield f"  acl unusual req.hdrs -m reg '{_unusual_call(carriers, layout.head_size_bytes)}'"
    yield from plain_acls()
    yield "  acl odd var(txn.odd) -m bool"
    yield "  acl scoped var(txn.scope) -m found"
    yield "  acl carried var(txn.carried) -m found"
    names = f"req.hdr_names -m reg '{listed(carriers)}'" if carriers else "always_false"
    yield f"  acl carrying {names}"
    yield from about_client(outbound)
    yield "  http-request set-var(txn.odd) bool(true) if unusual || !plain_line || !plain_target"
    yield "  http-request set-var(txn.scope) req.fhdr(scope),url_enc"
    if carriers:
        yield from _recovered(carriers)
    yield "  http-request set-var(txn.logged_scope) var(txn.scope)"
    yield f"  http-request set-var(txn.logged_scope) str({haproxy_names.RECOVERED}),concat(,txn.scope) if carried"
    yield from request_log_lines(service, "txn.logged_scope")
    yield f"  http-request set-var(txn.to) var(txn.scope),map({flows}) if !odd scoped"
    if service.unknown_calls is not UnknownCalls.REFUSE:
        yield f"  http-request set-var(txn.to) str({haproxy_names.LOCAL_KEY}),map({flows}) if !odd !scoped !carrying"
    yield f"  http-request set-var(txn.to) str({agent}) if !{{ var(txn.to) -m found }}"
    yield from exceptions(service, agent)
    if service.unknown_calls is UnknownCalls.WARN:
        unknown = haproxy_names.unknown_of(service.name)
        yield f"  http-request set-var(txn.to) str({unknown}) if is_own !scoped !carrying"
    yield f"  acl is_agents var(txn.to) -m str {agent}"
    yield "  http-request set-header scope %[var(txn.scope),url_dec] if carried !is_agents"
    yield "  use_backend %[var(txn.to),field(1,|)]"
    yield f"  default_backend {agent}"


def _recovered(carriers: tuple[str, ...]) -> Iterator[str]:
    """Recover the scope of a call from its carriers. The key must equal that of `admission.call_key`."""
    key = "str(|)"
    for number, name in enumerate(carriers):
        part = ",field(2,-)" if name.lower() == "traceparent" else ""
        yield (
            f'  http-request set-var(txn.c{number}) "req.fhdr({_argument(name)}){part},url_enc" '
            "if !odd !scoped carrying"
        )
        key += f",concat(,txn.c{number},|)"
    yield (f"  http-request set-var(txn.carried) {key},map({haproxy_names.CARRIED}) if !odd !scoped carrying")
    yield "  http-request set-var(txn.scope) var(txn.carried) if carried"


def _unusual_call(carriers: tuple[str, ...], head_size_bytes: int) -> str:
    """As for every request; and carriers that are given twice, are long, or are not what they should be."""
    names = [*NAMES, *(rf"{in_pattern(name)}: .{{{haproxy_names.MAX_VALUE_BYTES + 1}}}" for name in carriers)]
    if "traceparent" in {name.lower() for name in carriers}:
        names.append(rf"traceparent: (?!{_TRACE}\r$)")
    return unusual(tuple(names), ("scope", *map(in_pattern, carriers)), head_size_bytes)


def _argument(name: str) -> str:
    """The name of a header, which is a token, as an argument between double quotes."""
    return name.lower().replace("$", "\\$").replace("'", "\\\\'")
