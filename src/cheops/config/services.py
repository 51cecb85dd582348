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
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Self

from cheops.config.address import Address, address_of_url, is_loopback
from cheops.config.body_members import MEMBERS, read_items, read_refs
from cheops.config.gateway import ServiceListener
from cheops.config.pages import PAGES, PagesConfig
from cheops.config.request_rules import LOGINS, NEVER, RULES, SECRETS, RequestRule, SecretMembers
from cheops.config.rule_syntax import ERRORS, SERVICE_RULES
from cheops.config.service_credentials import (
    HEADER,
    AuthConfig,
    ClientConfig,
    SignConfig,
    read_id_path,
    write_id_path,
)
from cheops.config.service_rules import ServiceRules
from cheops.config.service_tls import UpstreamTls, check_upstream_tls
from cheops.config.settings import REQUIRED, Section, inline, is_set, place, section, setting
from cheops.config.types import HTTP_BACKEND, HTTP_POLICY, VERIFY_EVERY, VERIFY_EVERY_DOC, TypeConfig
from cheops.config.values import (
    BOOLEAN,
    DURATION,
    KIB,
    MIB,
    URL_WITH_PATH,
    ValueType,
    choice,
    read_path,
    size,
)
from cheops.log.matrix import Entry, Matrix, MatrixError, Result
from cheops.matrix_file import matrix_within, read_matrix
from cheops.text import listed, printable, shortened
from cheops.yaml_file import Value

TYPE_PREFIX = "http:"
READ = "GET"  # shows the state of a resource
EXISTS = ("abort", "adopt", "overwrite")
FORWARD = ("client", "none")
HOST_OF_CLIENT, HOST_OF_SERVICE = "client", "service"  # or a name
REPLICATE_AS = ("own", "mapped")
CREDENTIAL_HEADERS = (
    *("Authorization", "Proxy-Authorization", "Cookie", "X-Auth-Token", "X-Subject-Token", "X-Service-Token"),
    *("X-Api-Key", "X-Access-Token", "X-Csrf-Token", "X-Amz-Security-Token", "Private-Token"),
)
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]{1,253})(?::[0-9]{1,5})?")
_NAME_IN_BODY = re.compile(r"\{([A-Za-z_][\w.-]*)\}")

# PUT replaces, PATCH is ordered, DELETE wins over everything (it is a kind of operation of its own), and all else is
# ordered. `base` runs nothing: it marks the state from which PATCHes are run again in the right order. See
# docs/replication.md.
CREATE, CREATE_NAMED, PUT, PATCH, STEPS, BASE = "create", "create-named", "put", "patch", "patch-steps", "base"
MOVE = "move"
BUILTIN_MATRIX = (
    Entry(PUT, PUT, Result.TAKE_ONE),
    Entry(PUT, PATCH, Result.KEEP_ORDER),
    Entry(PUT, STEPS, Result.KEEP_ORDER),
    Entry(PUT, BASE, Result.KEEP_ORDER),
    Entry(BASE, BASE, Result.TAKE_ONE),
    Entry(BASE, PATCH, Result.KEEP_ORDER, concurrent_both=True),
    # Parts of a resource: a PUT replaces, or a DELETE removes, what was there.
    Entry("put *", "put *", Result.TAKE_ONE),
    Entry("put *", "delete *", Result.TAKE_ONE),
    Entry("delete *", "delete *", Result.TAKE_ONE),
    # Two sites that create what clients name have made one resource.
    Entry(CREATE_NAMED, CREATE_NAMED, Result.TAKE_ONE),
    # What has another name has the same content: each change runs where the resource is at that moment.
    Entry(MOVE, MOVE, Result.TAKE_ONE),
    *(Entry(other, MOVE, Result.TAKE_BOTH) for other in (CREATE_NAMED, PUT, PATCH, STEPS, BASE, "put *", "delete *")),
)


def _read_find(value: Value) -> str:
    text = value.string()
    if not text.startswith("/") or any(character.isspace() or character == "#" for character in text):
        raise value.fail(f"expected a path, such as /images?name={{name}}, found '{printable(shortened(text))}'")
    return text


def _read_service_matrix(value: Value) -> Matrix:
    """The entries of the file, and the built-in ones for all other pairs."""
    written = read_matrix(read_path(value)) if value.is_text else matrix_within(value)
    entries = written.matrix.entries
    pairs = {frozenset((entry.before, entry.after)) for entry in entries}
    kept = (entry for entry in BUILTIN_MATRIX if frozenset((entry.before, entry.after)) not in pairs)
    try:
        return Matrix((*kept, *entries))
    except MatrixError as error:
        raise value.fail(f"together with the built-in entries (see docs/replication.md): {error}") from None


def _read_host(value: Value) -> str:
    text = value.string()
    if not _AUTHORITY.fullmatch(text):
        shown = printable(shortened(text))
        raise value.fail(f"expected client, service, or a host name such as s3.example.org:9000, found '{shown}'")
    return text


def _read_headers(value: Value) -> tuple[str, ...]:
    """In addition to the built-in names: a list without one of them would send a secret to other sites."""
    names = tuple(item.string() for item in value.items())
    for name in names:
        if not HEADER.fullmatch(name):
            raise value.fail(f"'{printable(shortened(name))}' is not the name of a header")
    return tuple(dict.fromkeys((*CREDENTIAL_HEADERS, *names)))


@cache
def _plain_names(headers: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name.lower().replace("_", "-") for name in headers)


@dataclass(frozen=True, slots=True)
class ReplicationConfig(Section):
    """How the resources of a service are replicated."""

    id: tuple[str, ...] = setting(  # names from the root of a response's JSON; empty: the Location header
        ValueType("`$.…` or `Location`", read_id_path, write_id_path),
        ("id",),
        "Where the id of a new resource is in the service's response: names from the root of its JSON (`$.image.id`), "
        "or `Location` for that header. If there is none, the header is used too.",
    )
    items: tuple[tuple[str, str], ...] = setting(
        ValueType("paths by path", read_items),
        (),
        'Where to find what is created at a path: `{/images/import: "/images/{id}"}`. A `*` matches one part, in '
        'both. Also names collections below a resource: `{"/servers/*/disks": "/servers/*/disks/{id}"}`, and other '
        'views of one: `{"/posts/*/comments": "/comments/{id}"}`.',
        shown="below the path at which it is created",
    )
    refs: tuple[tuple[str, str], ...] = setting(
        ValueType("paths by name", read_refs),
        (),
        "Names of JSON members that hold ids of another collection of the service: `{image_id: /images}`; or objects "
        'of it, or lists of either: `{cover: /images}` for `"cover": {"id": 5}`; or an object whose members are named '
        "by such ids. UUIDs and other hexadecimal ids of 16 digits or more need no entry.",
        shown="none",
    )
    matrix: Matrix = setting(
        ValueType("matrix or path", _read_service_matrix),
        Matrix(BUILTIN_MATRIX),
        "[How requests combine](replication.md#requests-that-meet): entries that extend or replace the built-in ones.",
        shown="built in",
    )
    rules: ServiceRules = setting(
        SERVICE_RULES,
        ServiceRules(),
        "[What a request is about](replication.md#what-a-request-is-about): rules, the name of a set of rules, or "
        "both. A request that no rule matches is plain REST.",
        shown="`[]`",
    )
    local: frozenset[tuple[str, ...]] = setting(
        MEMBERS,
        frozenset(),
        "Members of JSON bodies that belong to one site, such as `$.metadata.uid`: they are removed from a body before "
        "another site runs the request, and `cheops verify` does not compare them. Sets of rules may have some.",
        shown="`[]`",
    )
    ignore: frozenset[tuple[str, ...]] = setting(
        MEMBERS,
        frozenset(),
        "Further members that `cheops verify` does not compare, such as `$.updated_at`.",
        shown="`[]`",
    )
    verify_every_s: float | None = setting(VERIFY_EVERY, None, VERIFY_EVERY_DOC, shown="never")
    search: bool = setting(
        BOOLEAN,
        False,
        "Whether a `GET` or `HEAD` that this site's instance answers with 404 is looked up at the other sites, by its "
        "path: what a client named there with `&` is then read there. Every 404 costs a question to each other site, "
        "and all requests to this site's instance pass the agent.",
    )
    errors: str = setting(
        ERRORS,
        "problem",
        "The shape of errors that Cheops itself makes, so that the service's clients show them: `problem` (RFC 9457), "
        "or as `openstack`, `kubernetes` or `s3` has them, or `plain` text. What the service answers is never changed. "
        "Sets of rules may have another default.",
    )
    exists: str = setting(
        choice(EXISTS, str),
        "abort",
        "What to do if the service answers that a new resource exists already (409, 412): `abort`, `adopt` it, or "
        "`overwrite` it. The header `Cheops-Exists` of a request overrides this.",
    )
    find: str = setting(
        ValueType("path and query", _read_find),
        "",
        "How to find the existing resource, for `adopt` and `overwrite`: a path with names of the request's JSON "
        "members in braces, `/images?name={name}`. It must list exactly one.",
        shown="none",
    )
    forward: str = setting(
        choice(FORWARD, str),
        "client",
        "Requests that are served by another site: with `client`, the client's credentials go with them, from gateway "
        "to gateway; with `none` they are removed. No site ever adds credentials to such a request.",
    )
    replicate_as: str = setting(
        choice(REPLICATE_AS, str),
        "own",
        "With which credentials this site runs changes that were accepted at another site: its `own` (`auth`), or "
        "those that it has for this client (`mapped`). See [credentials](replication.md#credentials).",
    )
    host: str = setting(
        ValueType("`client`, `service`, or a host name", _read_host),
        "",
        "The `Host` with which this site sends replicated changes to its instance: the one that the `client` sent, "
        "that of the `service` (from `url`), or this name. See [the header Host](replication.md#the-header-host).",
        shown="`client` at the site that takes the change, `service` at the others",
    )
    auth: AuthConfig | None = setting(
        section(AuthConfig),
        None,
        "The credentials with which this site runs changes that were accepted at another site. Without it they run "
        "without credentials. Never used for a request of a client of this site.",
    )
    sign: SignConfig | None = setting(
        section(SignConfig),
        None,
        "How this site signs the changes that were accepted at another site, with a key of its own. A change that a "
        "client sends to this site keeps the client's signature.",
    )
    client: ClientConfig | None = setting(
        section(ClientConfig), None, "How this site finds out who a client is, for `replicate_as: mapped`."
    )
    allow: tuple[RequestRule, ...] | None = setting(
        RULES,
        None,
        "The changes that are replicated to this site, and from it: `[POST /v2/images, PUT /v2/images/**]`. A `*` "
        "matches one part of a path, `**` any number of parts. All others are refused, whichever site sent them; `[]` "
        "refuses all.",
        shown="all",
    )
    never: tuple[RequestRule, ...] = setting(
        NEVER,
        LOGINS,
        f"Further requests that are never replicated, beside {', '.join(f'`{rule}`' for rule in LOGINS)}. With `&` "
        "they are refused.",
        shown="`[]`",
    )
    secret: SecretMembers = setting(
        SECRETS,
        SecretMembers(),
        "Further members of bodies, forms and queries that are never written down, beside well-known names such as "
        "`password` and `adminPass`: [secrets](replication.md#secrets). `-password` takes a well-known name out.",
        shown="`[]`",
    )
    credential_headers: tuple[str, ...] = setting(
        ValueType("list of headers", _read_headers),
        CREDENTIAL_HEADERS,
        f"Further headers that hold credentials, beside {', '.join(CREDENTIAL_HEADERS[:-1])} and "
        f"{CREDENTIAL_HEADERS[-1]}.",
        shown="`[]`",
    )
    timeout_s: float = setting(
        DURATION, 60.0, "How long the service may take to respond once it has the whole request."
    )
    session_s: float = setting(
        DURATION,
        86_400.0,
        "How long a [session](replication.md#sessions), such as a multipart upload, may stay open. After that its "
        "requests are refused.",
    )
    keep_response_bytes: int = setting(
        size(maximum=MIB),
        64 * KIB,
        "Largest response that is kept with the operation and sent to all sites. Of a larger one, only its size.",
    )

    @property
    def local_members(self) -> frozenset[tuple[str, ...]]:
        """Members that belong to one site: those of the configuration, and of the sets of rules that it takes."""
        return self.local | self.rules.local

    def is_credential(self, header: str) -> bool:
        """Some programs read `_` in the name of a header as `-`."""
        return header.lower().replace("_", "-") in _plain_names(self.credential_headers)

    def complete(self, value: Value) -> Self:
        self._check_clients(value)
        if self.verify_every_s is not None and self.rules.is_whole:
            raise place(value, "verify_every").fail(
                "a rule has 'of: service', so all that the service has is one resource, and no GET gives its state: "
                "nothing could be compared"
            )
        # What the configuration says itself counts before the sets of rules that it takes.
        return replace(
            self,
            items=self.items + self.rules.items,
            refs=self.rules.refs + self.refs,
            ignore=self.ignore | self.rules.ignore,
            errors=self.errors if is_set(value, "errors") else self.rules.errors or self.errors,
            matrix=self._matrix_with_sets(value),
        )

    def _matrix_with_sets(self, value: Value) -> Matrix:
        if not self.rules.matrix:
            return self.matrix
        of_sets = {frozenset((entry.before, entry.after)) for entry in self.rules.matrix}
        kept = [
            entry
            for entry in self.matrix.entries
            if entry not in BUILTIN_MATRIX or frozenset((entry.before, entry.after)) not in of_sets
        ]
        given = {frozenset((entry.before, entry.after)) for entry in kept}
        more = (entry for entry in self.rules.matrix if frozenset((entry.before, entry.after)) not in given)
        try:
            return Matrix((*kept, *more))
        except MatrixError as error:
            raise place(value, "matrix").fail(f"together with {listed(self.rules.names)} of 'rules': {error}") from None

    def _check_clients(self, value: Value) -> None:
        if self.replicate_as == "mapped":
            if self.auth is None or self.auth.file is not None:
                raise place(value, "replicate_as").fail(
                    "'mapped' needs the credentials of each client: 'auth' with 'folder' or 'command'"
                )
            if self.client is None:
                raise place(value, "replicate_as").fail("'mapped' needs 'client': how to find out who a client is")
            if self.sign is not None:
                raise place(value, "sign").fail("'sign' has one key for all clients, so it is not for 'mapped'")
        elif self.auth is not None and self.auth.folder is not None:
            raise place(value, "auth").fail("'folder' has credentials by client, for 'replicate_as: mapped'")
        elif self.client is not None:
            raise place(value, "client").fail("'client' is for 'replicate_as: mapped'")


@dataclass(frozen=True, slots=True)
class ServiceConfig(Section):
    """A service of this site, and where this site's own instance of it is."""

    replaced: ClassVar[Mapping[str, str]] = {
        "credentials": "'forward: client | none' is for requests that another site serves, and "
        "'replicate_as: own | mapped' for replicated changes; see docs/replication.md#credentials",
    }

    name: str
    url: str = setting(
        URL_WITH_PATH, REQUIRED, "Where this site's own instance of the service is. The URL may have a path."
    )
    upstream_tls: UpstreamTls = inline(UpstreamTls)
    listener: ServiceListener = inline(ServiceListener)
    replication: ReplicationConfig = inline(ReplicationConfig)
    pages: PagesConfig | None = setting(
        PAGES,
        None,
        "How the service gives long lists in pages, for [reads over several "
        "sites](gateway.md#lists-over-several-sites): `none` if it never does. Without it, such a read is refused "
        "where a request or a response looks like a page.",
        shown="not known",
    )

    def complete(self, value: Value) -> Self:
        check_upstream_tls(self.url, value)
        return self

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names by which the application calls it through the gateway's proxy."""
        return self.listener.hosts or (self.name.lower(),)


def type_name(service: str) -> str:
    return f"{TYPE_PREFIX}{service}"


def service_of(type_: str) -> str | None:
    """The service whose resources have this type; None if it is no service's. By the name alone: tokens may be limited
    to services, and that holds for types that this site does not configure, too."""
    return type_.removeprefix(TYPE_PREFIX) if type_.startswith(TYPE_PREFIX) else None


def resource_type(service: str, config: ReplicationConfig) -> TypeConfig:
    """The type of a service's resources. It allows no command: its operations are HTTP requests."""
    name, every_s = type_name(service), config.verify_every_s
    return TypeConfig(
        name, config.matrix, READ, show=(), policy=HTTP_POLICY, backend=HTTP_BACKEND, verify_every_s=every_s
    )


def body_names(find: str) -> tuple[str, ...]:
    """The members of a request's body that `find` refers to."""
    return tuple(_NAME_IN_BODY.findall(find))


def check_service_url(service: ServiceConfig, value: Value, listen: Address, advertise: str) -> None:
    """Refuse a service whose URL is the agent itself: its requests would loop."""
    if _is_agent(service.url, listen, advertise):
        raise place(value, "url").fail(f"{service.url} is this agent itself; give the address of the service")


def _is_agent(url: str, listen: Address, advertise: str) -> bool:
    address = address_of_url(url)
    # `localhost`, 127.0.0.1 and ::1 are different hosts here, but with the same port they all lead back.
    accepts_loopback = listen.is_wildcard or is_loopback(listen.url)
    return address in (listen, address_of_url(advertise)) or (
        accepts_loopback and is_loopback(url) and address.port == listen.port
    )


def service_conflict(services: Mapping[str, ServiceConfig], listeners: Iterable[tuple[str, Address]]) -> str | None:
    """An error of the services together: a URL that leads back to the gateway, or one host name for two services."""
    for key, address in listeners:
        for service in services.values():
            if _is_agent(service.url, address, address.url):
                return f"services.{service.name}.url: {service.url} is '{key}' of this gateway itself"
    owners: dict[str, str] = {}
    for service in services.values():
        for host in service.hosts:
            if owners.setdefault(host, service.name) != service.name:
                return f"'{host}' is the host name of both {owners[host]} and {service.name}; see 'hosts'"
    return None
