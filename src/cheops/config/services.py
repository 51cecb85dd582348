"""The services of a site: the application's HTTP APIs behind the gateway, and how their resources are replicated.

services:
  image:
    url: http://127.0.0.1:9292
    id: $.image.id
    exists: adopt
    find: /v2/images?name={name}
    auth: {file: token}
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cheops.config.address import Address, address_of_url, is_loopback, url_at
from cheops.config.gateway import ServiceListener, listener_at
from cheops.config.settings import AUTH, SERVICE, duration_s, named_at, optional, path_at, size
from cheops.config.types import HTTP_POLICY, TypeConfig
from cheops.documents import Value
from cheops.engine.settings import ResourceType
from cheops.log.matrix import Entry, Matrix, MatrixError, Result
from cheops.matrix_file import matrix_within, read_matrix
from cheops.text import listed, nearest, printable, shortened

TYPE_PREFIX = "http:"
HTTP_BACKEND = "http"
READ = "GET"  # what shows the state of a replicant
LOCATION = "Location"
EXISTS = ("abort", "adopt", "overwrite")
CREDENTIALS = ("drop", "pass")
CREDENTIAL_HEADERS = (
    *("Authorization", "Proxy-Authorization", "Cookie", "X-Auth-Token", "X-Subject-Token", "X-Service-Token"),
    *("X-Api-Key", "X-Access-Token", "X-Csrf-Token", "X-Amz-Security-Token", "Private-Token"),
)
MAX_KEPT_BYTES = 1024 * 1024
_HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,100}")
_PATH = re.compile(r"/[^\s?#]*")
_ID_PATH = re.compile(r"\$((?:\.[A-Za-z_][\w-]*){1,8})")
_NAME_IN_BODY = re.compile(r"\{([A-Za-z_][\w.-]*)\}")

# PUT replaces, PATCH is ordered, DELETE beats everything (it is of a kind of its own), all else is ordered.
# `base` runs nothing: it marks from where PATCHes are run again in the right order. See docs/replication.md.
PUT, PATCH, STEPS, BASE = "put", "patch", "patch-steps", "base"
BUILTIN_MATRIX = (
    Entry(PUT, PUT, Result.TAKE_ONE),
    Entry(PUT, PATCH, Result.KEEP_ORDER),
    Entry(PUT, STEPS, Result.KEEP_ORDER),
    Entry(PUT, BASE, Result.KEEP_ORDER),
    Entry(BASE, BASE, Result.TAKE_ONE),
    Entry(BASE, PATCH, Result.KEEP_ORDER, concurrent_both=True),
)


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Where this site's own credentials come from: lines of headers, in a file or printed by a command."""

    file: Path | None = None
    command: tuple[str, ...] = ()
    every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """All that replication needs to know of a service."""

    id: tuple[str, ...] = ("id",)  # names from the root of an answer's JSON; none: the Location header
    items: tuple[tuple[str, str], ...] = ()  # where what is created at a path is found, if not below it
    refs: tuple[tuple[str, str], ...] = ()  # names of members that hold ids of a collection
    matrix: Matrix = field(default_factory=lambda: Matrix(BUILTIN_MATRIX))
    exists: str = "abort"
    find: str = ""  # the path, with names of the body's members in braces, that lists what is there already
    auth: AuthConfig | None = None
    credentials: str = "drop"
    credential_headers: tuple[str, ...] = CREDENTIAL_HEADERS
    timeout_s: float = 60.0
    keep_response_bytes: int = 64 * 1024

    def is_credential(self, header: str) -> bool:
        return header.lower() in {name.lower() for name in self.credential_headers}


def type_name(service: str) -> str:
    return f"{TYPE_PREFIX}{service}"


def service_of(type_: str) -> str | None:
    """The service whose resources a type stands for, or None."""
    return type_.removeprefix(TYPE_PREFIX) if type_.startswith(TYPE_PREFIX) else None


def resource_type(service: str, config: ReplicationConfig) -> TypeConfig:
    """The type of a service's replicants. No command is allowed: its operations are HTTP requests."""
    name = type_name(service)
    return TypeConfig(name, config.matrix, ResourceType(name), READ, show=(), policy=HTTP_POLICY, backend=HTTP_BACKEND)


def replication_at(record: dict[str, Value], folder: Path) -> ReplicationConfig:
    """What a service's section says; paths of files start at the folder."""
    default = ReplicationConfig()
    exists = optional(record, "exists", lambda at: _one_of(at, EXISTS), default.exists)
    return ReplicationConfig(
        optional(record, "id", _id_path, default.id),
        optional(record, "items", _items, ()),
        optional(record, "refs", _refs, ()),
        optional(record, "matrix", lambda at: _matrix(at, folder), default.matrix),
        exists,
        optional(record, "find", _find, ""),
        optional(record, "auth", lambda at: _auth(at, folder), None),
        optional(record, "credentials", lambda at: _one_of(at, CREDENTIALS), default.credentials),
        optional(record, "credential_headers", _headers, default.credential_headers),
        optional(record, "timeout", duration_s, default.timeout_s),
        optional(record, "keep_response", _kept, default.keep_response_bytes),
    )


def names_in(find: str) -> tuple[str, ...]:
    """The members of a request's body that `find` asks for."""
    return tuple(_NAME_IN_BODY.findall(find))


def _one_of(value: Value, known: tuple[str, ...]) -> str:
    text = value.string()
    if text not in known:
        meant = nearest(text, known)
        hint = f"did you mean '{meant}'? " if meant else ""
        raise value.fail(f"unknown value '{printable(shortened(text))}'; {hint}Known here: {listed(known)}")
    return text


def _id_path(value: Value) -> tuple[str, ...]:
    text = value.string()
    if text.lower() == LOCATION.lower():
        return ()
    if not (found := _ID_PATH.fullmatch(text)):
        shown = printable(shortened(text))
        raise value.fail(f"expected where a new id stands, such as $.id, $.image.id or Location, found '{shown}'")
    return tuple(found[1].split(".")[1:])


def _items(value: Value) -> tuple[tuple[str, str], ...]:
    found = []
    for path, at in value.mapping().items():
        item = _path(at)
        if not _PATH.fullmatch(path):
            raise at.fail(f"'{printable(shortened(path))}' is not a path, such as /images/import")
        if item.split("/").count("{id}") != 1 or not item.endswith("/{id}"):
            raise at.fail(f"'{printable(shortened(item))}' must end with /{{id}}, where the id stands")
        if item.split("/").count("*") > path.split("/").count("*"):
            raise at.fail("each * takes what stands at a * of the path, which has fewer")
        found.append((path.rstrip("/"), item))
    return tuple(found)


def _refs(value: Value) -> tuple[tuple[str, str], ...]:
    return tuple((name, _path(at).rstrip("/")) for name, at in value.mapping().items())


def _path(value: Value) -> str:
    text = value.string()
    if not _PATH.fullmatch(text):
        raise value.fail(f"expected a path, such as /images, found '{printable(shortened(text))}'")
    return text


def _find(value: Value) -> str:
    text = value.string()
    if not text.startswith("/") or any(character.isspace() or character == "#" for character in text):
        raise value.fail(f"expected a path, such as /images?name={{name}}, found '{printable(shortened(text))}'")
    return text


def _matrix(value: Value, folder: Path) -> Matrix:
    """The built-in entries, but for the pairs that the file speaks of, and those of the file."""
    written = read_matrix(path_at(value, folder)) if value.is_text else matrix_within(value)
    entries = written.matrix.entries
    pairs = {frozenset((entry.before, entry.after)) for entry in entries}
    kept = (entry for entry in BUILTIN_MATRIX if frozenset((entry.before, entry.after)) not in pairs)
    try:
        return Matrix((*kept, *entries))
    except MatrixError as error:
        raise value.fail(f"together with what is built in (see docs/replication.md): {error}") from None


def _auth(value: Value, folder: Path) -> AuthConfig:
    record = AUTH.read(value)
    if ("file" in record) == ("command" in record):
        raise value.fail("expected one of 'file' and 'command': where lines of headers come from")
    return AuthConfig(
        optional(record, "file", lambda at: path_at(at, folder), None),
        optional(record, "command", _words, ()),
        optional(record, "every", duration_s, AuthConfig().every_s),
    )


def _words(value: Value) -> tuple[str, ...]:
    words = tuple(item.string() for item in value.items())
    if not words or not words[0]:
        raise value.fail("expected a program and its arguments, as a list")
    return words


def _headers(value: Value) -> tuple[str, ...]:
    """In addition to the built-in ones: a list that forgot one would give a secret away."""
    names = tuple(item.string() for item in value.items())
    for name in names:
        if not _HEADER.fullmatch(name):
            raise value.fail(f"'{printable(shortened(name))}' is not the name of a header")
    return tuple(dict.fromkeys((*CREDENTIAL_HEADERS, *names)))


def _kept(value: Value) -> int:
    found = size(value)
    if found > MAX_KEPT_BYTES:
        raise value.fail("at most 1MiB: what is kept goes to all sites")
    return found


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """A service of this site, and where its own instance of it is."""

    name: str
    url: str
    front: ServiceListener = field(default_factory=ServiceListener)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)

    @property
    def hosts(self) -> tuple[str, ...]:
        """What the application calls it, where it goes through the gateway's proxy."""
        return self.front.hosts or (self.name.lower(),)


def services_at(value: Value, listen: Address, advertise: str, folder: Path) -> dict[str, ServiceConfig]:
    return {name: _service(name, at, listen, advertise, folder) for name, at in named_at(value).items()}


def _service(name: str, value: Value, listen: Address, advertise: str, folder: Path) -> ServiceConfig:
    record = SERVICE.read(value)
    url = url_at(record["url"], with_path=True)
    if _is_the_agent(url, listen, advertise):
        raise record["url"].fail(f"{url} is this agent itself; give the address of the service")
    return ServiceConfig(name, url, listener_at(record, advertise), replication_at(record, folder))


def _is_the_agent(url: str, listen: Address, advertise: str) -> bool:
    """Whether requests to the service would come back to the agent, for ever."""
    place = address_of_url(url)
    hears_loopback = listen.is_wildcard or is_loopback(listen.url)
    return place in (listen, address_of_url(advertise)) or (
        hears_loopback and is_loopback(url) and place.port == listen.port
    )


def service_conflict(services: Mapping[str, ServiceConfig], listeners: Iterable[tuple[str, Address]]) -> str | None:
    """What no service by itself can show: requests that would come back for ever, and names for two."""
    for key, address in listeners:
        for service in services.values():
            if _is_the_agent(service.url, address, address.url):
                return f"services.{service.name}.url: {service.url} is '{key}' of this gateway itself"
    named: dict[str, str] = {}
    for service in services.values():
        for host in service.hosts:
            if named.setdefault(host, service.name) != service.name:
                return f"'{host}' stands for both {named[host]} and {service.name}; see 'hosts'"
    return None
