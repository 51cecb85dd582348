"""The part of HAProxy's configuration that decides to whom a request goes. Pure.

One look at the head says whether the agent must see it, one at the map of the service where it goes. The
lines are what every request costs: what is rare stands behind a condition that fails at once for all others.
"""

from collections.abc import Iterator
from urllib.parse import quote

from cheops.config.address import Address
from cheops.gateway.fast import naming
from cheops.gateway.fast.layout import Layout, ServiceLayout

SENDERS = "senders.map"
RING, REFUSED = "requests", "refused"
CERTIFICATE, AUTHORITIES = "site-and-key.pem", "authorities.pem"

# A head that the agent must see: looked for in all lines of it at once. What two programs could read
# differently, what is between two programs only, what belongs to the mesh, and ids of replicants.
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.~!$&\x27()*+;=%-]*)(?::[0-9]{0,5})?"
_NAMES = (
    "cheops",
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
_SENT_ON = ("cheops-(?!hop:|service:)", "cheops_", *_NAMES[1:])  # by another gateway
_VALUES = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[cC]4[eE]095[aA]1-"
_IS_HOSTLESS = rf"\A(?!(?s:.*?)^host: {_HOST}\r$)"
_BODIES = "json|x-www-form-urlencoded"
REPEATABLE = "{ method GET HEAD OPTIONS PUT DELETE }"


def _unusual(names: tuple[str, ...]) -> str:
    return rf"(?m){_IS_HOSTLESS}|^(?:{'|'.join(names)})|^scope:(?s:.*?)^scope:|{_VALUES}"


def frontend(service: ServiceLayout) -> Iterator[str]:
    yield f"frontend in.{naming.slug(service.name)}"
    yield f"  bind {_at(service.listen)}"
    yield from _logged(service)
    yield from _recognised()
    yield "  acl sent var(txn.sent) -m found"
    yield from _looked_up(service)
    yield from _exceptions(service)
    yield "  use_backend %[var(txn.to),field(1,|)]"
    yield f"  default_backend {naming.agent_of(service.name)}"


def mesh_frontend(layout: Layout) -> Iterator[str]:
    """The address of other gateways. Each shows a certificate; whose it is the agent finds out the first
    time, and says under which name it may ask (SENDERS)."""
    if layout.mesh is None:
        return
    agent = naming.MESH_AGENT
    yield "frontend mesh"
    yield (
        f"  bind {_at(layout.mesh)} ssl crt {CERTIFICATE} ca-file {AUTHORITIES} verify required "
        "ssl-min-ver TLSv1.3 alpn http/1.1 no-tls-tickets"
    )
    yield f"  log ring@{REFUSED} format raw local0"
    yield "  no option dontlognull"  # who goes without a word may have been refused
    yield '  error-log-format "%Ts%ms %rt %ci %[ssl_c_err] %[ssl_fc_err_str,url_enc]"'
    yield "  http-request set-log-level silent"
    # Once for each connection: to write a certificate down costs as much as to forward a request.
    yield ("  http-request set-var(sess.shown) ssl_c_der,sha2(256),hex if !{ var(sess.shown) -m found }")
    yield from _recognised(shown="var(sess.shown)", is_all_sent=True)
    yield "  acl sent var(txn.sent) -m found"
    yield f"  acl is_without_bodies var(txn.to) -m end |{naming.NO_BODIES}"
    yield f"  http-request set-var(txn.to) req.fhdr(cheops-service),map({naming.SERVICES},{agent}) if sent"
    to_agent = f"  http-request set-var(txn.to) str({agent}) if"
    yield f"{to_agent} !sent"
    yield f"{to_agent} is_without_bodies {{ req.fhdr(content-type) -m reg -i {_BODIES} }}"
    carriers = tuple(sorted({name for service in layout.services for name in service.carriers}))
    if carriers:
        yield f"{to_agent} {{ req.hdr_names -m reg '{listed(carriers)}' }}"
    yield "  use_backend %[var(txn.to),field(1,|)]"
    yield f"  default_backend {agent}"


def _at(address: Address) -> str:
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"


def _logged(service: ServiceLayout) -> Iterator[str]:
    """Requests with a scope, in a ring in HAProxy's memory: see counting.py."""
    name = told(quote(service.name))
    yield f"  log ring@{RING} format raw local0"
    yield (f'  log-format "%Ts%ms %rt {name} %b %s %ST %Ta %HM %[capture.req.hdr(0)] %[capture.req.hdr(1)]"')
    yield "  declare capture request len 600"
    yield "  declare capture request len 400"


def _recognised(shown: str = "src", *, is_all_sent: bool = False) -> Iterator[str]:
    """What a request has: `odd`, where the agent must see it; `sent`, where another gateway sent it on, which
    is known by its name and by what it shows: its address, or its certificate."""
    yield f"  acl unusual req.hdrs -m reg '{_unusual(_NAMES)}'"
    yield f"  acl unusual_even_so req.hdrs -m reg '{_unusual(_SENT_ON)}'"
    yield "  acl plain_line req.ver 1.1"
    yield "  acl plain_target url_beg /"
    yield "  acl names_replicant url -m sub -i c4e095a1-"
    yield "  acl one_hop req.fhdr_cnt(cheops-hop) eq 1"
    yield "  acl one_service req.fhdr_cnt(cheops-service) le 1"
    if is_all_sent:  # every one has a header that makes it unusual
        yield "  http-request set-var(txn.odd) bool(true)"
    else:
        yield (
            "  http-request set-var(txn.odd) bool(true) "
            "if unusual || !plain_line || !plain_target || names_replicant"
        )
    yield (
        f"  http-request set-var-fmt(txn.hop) %[req.fhdr(cheops-hop)]|%[{shown}] "
        "if { var(txn.odd) -m bool } one_hop one_service "
        "!unusual_even_so plain_line plain_target !names_replicant"
    )
    yield f"  http-request set-var(txn.sent) var(txn.hop),map({SENDERS}) if {{ var(txn.hop) -m found }}"


def _looked_up(service: ServiceLayout) -> Iterator[str]:
    """To whom it goes: the agent, unless nothing speaks against a flow, and there is one."""
    agent, flows = naming.agent_of(service.name), naming.map_of(service.name)
    yield "  acl scoped var(txn.scope) -m found"
    yield "  acl decided var(txn.to) -m found"
    yield "  http-request set-var(txn.scope) req.fhdr(scope),url_enc"
    yield f"  http-request set-var(txn.to) str({agent}) if {{ var(txn.odd) -m bool }} !sent"
    yield (
        f"  http-request set-var(txn.to) str({naming.LOCAL_KEY}),map({flows},{agent}) "
        "if !decided !scoped || sent"
    )
    yield f"  http-request set-var(txn.to) var(txn.scope),map({flows},{agent}) if !decided"
    yield "  http-request set-log-level silent if !scoped || sent"
    yield "  http-request capture var(txn.scope) id 0 if scoped"
    yield "  http-request capture path,url_enc id 1 if scoped"


def _exceptions(service: ServiceLayout) -> Iterator[str]:
    """Requests that a flow is not for, though they have its scope."""
    to_agent = f"  http-request set-var(txn.to) str({naming.agent_of(service.name)}) if"
    yield "  acl is_own var(txn.to) -m beg own."
    yield "  acl is_followed var(txn.to) -m beg or."
    yield f"  acl is_without_bodies var(txn.to) -m end |{naming.NO_BODIES}"
    yield f"{to_agent} is_without_bodies {{ req.fhdr(content-type) -m reg -i {_BODIES} }}"
    # What cannot be repeated has to be looked after where another site may follow.
    yield f"{to_agent} is_followed !{REPEATABLE}"
    if service.dropped:  # they would be lacking where it is tried next
        yield f"{to_agent} is_followed {{ req.hdr_names -m reg '{listed(service.dropped)}' }}"
    if service.carriers:  # what they stand for has to be remembered
        yield f"{to_agent} is_own {{ req.hdr_names -m reg '{listed(service.carriers)}' }}"
    yield f"  http-request set-var(txn.to) str({naming.sent_of(service.name)}) if sent is_own"


def listed(names: tuple[str, ...]) -> str:
    """Whether one of these is among the names of a request's headers."""
    return f"(?:^|,)(?:{'|'.join(map(in_pattern, names))})(?:,|$)"


def in_pattern(name: str) -> str:
    """The name of a header, which is a token, as part of a regular expression."""
    return "".join(c if c.isalnum() or c in "-_" else f"\\x{ord(c):02x}" for c in name.lower())


def told(text: str) -> str:
    """A text of percent-encoded characters where HAProxy looks for formats."""
    return text.replace("%", "%%")
