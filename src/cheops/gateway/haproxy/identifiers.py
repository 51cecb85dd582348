"""Names and values in HAProxy's configuration and maps. Pure.

A flow is an entry in its service's map: the percent-encoded text of the Scope header, and a value with three fields,
`BACKEND|SCOPE|FLAGS`: which backend serves, the scope to pass on where its spelling differs, and what a request must
not have.
"""

import re
from collections.abc import Iterable
from urllib.parse import quote, unquote

LOCAL_KEY = "*"  # of requests without a scope: no encoded text has a star
RECOVERED = "*"  # stands before a scope in a log where a carrier told it
NO_BODIES = "b"  # not for bodies in which ids of replicants are looked for
WITHOUT_EXCEPTIONS = r"^(?:own|to)\.[^|]*(?:\|[^|]*\|)?$"  # values whose flow is for every usual request
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,60}")


def slug(name: str) -> str:
    """The name of a site or service as HAProxy's configuration can hold it."""
    return name if _PLAIN.fullmatch(name) and not name.startswith("x-") else f"x-{name.encode().hex()}"


def agent_of(service: str) -> str:
    return f"agent.{slug(service)}"


def own_of(service: str) -> str:
    return f"own.{slug(service)}"


def own_or_of(service: str) -> str:
    """This site's instance, and where that fails another site."""
    return f"or.{slug(service)}"


def sent_of(service: str) -> str:
    """This site's instance, for requests that the gateway of another site sent on."""
    return f"sent.{slug(service)}"


def peer_of(service: str, site: str) -> str:
    return f"to.{slug(service)}.{slug(site)}"


def peer_or_of(service: str, site: str) -> str:
    return f"or.{slug(service)}.{slug(site)}"


def map_of(service: str) -> str:
    return f"{slug(service)}.map"


def front_socket(service: str) -> str:
    """Where the agent takes what the fast path does not know."""
    return f"front.{slug(service)}.sock"


def again_socket(service: str) -> str:
    """Where it takes what the fast path tried in vain."""
    return f"again.{slug(service)}.sock"


def again_sent_socket(service: str) -> str:
    """The same for what another gateway sent on: it goes no further."""
    return f"sent.{slug(service)}.sock"


def calls_of(service: str) -> str:
    """The agent, for the application's own calls."""
    return f"calls.{slug(service)}"


def calls_socket(service: str) -> str:
    """Where it takes them."""
    return f"calls.{slug(service)}.sock"


MESH_AGENT = "mesh.agent"
MESH_SOCKET = "mesh.sock"  # where the agent takes what other gateways ask and the fast path does not know
SERVICES = "services.map"  # what other gateways may ask for: the name of a service as they send it → backend

CARRIED = "carried.map"  # which scope the carriers of a call stand for: see carrying.py
MOST_VALUE = 500  # bytes of a carrier's value; longer ones are the agent's


def key_of(scope: str) -> str:
    """The text of a header, one character per byte, as `url_enc` of HAProxy writes it."""
    return quote(scope.encode("latin-1"), safe="")


def carried_key(values: Iterable[str]) -> str:
    """What a call carries, in the order of the carriers: an empty text for each that it has not."""
    return "|" + "".join(f"{key_of(value)}|" for value in values)


def scope_of_key(key: str) -> str:
    return unquote(key, encoding="latin-1")


def value_of(backend: str, passed_on: str = "", flags: str = "") -> str:
    if not passed_on and not flags:
        return backend
    return f"{backend}|{key_of(passed_on)}|{flags}"
