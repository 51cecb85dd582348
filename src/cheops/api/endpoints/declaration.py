"""The declaration of an endpoint, the rights that endpoints need, and the parameters that several share."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, cast, get_args

from msgspec import NODEFAULT, Meta, Struct, structs

from cheops.api.models.operations import Wait
from cheops.schema import doc
from cheops.security.principal import Role

BASE = "/api/v1"
JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
PROBLEM_JSON = "application/problem+json"
MAX_TIMEOUT_S = 3600.0
MAX_FRESH_S = 10.0
MAX_COMMAND_CHARACTERS = 65_536  # of a command in an address


class NoParameters(Struct, frozen=True):
    """The parameters of an endpoint that has none."""


# Defaults of type variables came with Python 3.13; type checkers know them for all versions.
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    R = TypeVar("R")
    P = TypeVar("P", bound=Struct, default=NoParameters)
    B = TypeVar("B", default=None)
else:
    from typing import TypeVar

    R, P, B = TypeVar("R"), TypeVar("P"), TypeVar("B")


class Right(Struct, frozen=True):
    """What a client needs to use a route."""

    role: Role | None = None  # of people and programs; None: not for them
    sites: bool = False  # whether agents of other sites may use it
    is_open: bool = False  # whether no authentication is needed
    whole: bool = False  # about the site as a whole: not for a token that is limited to a part of it
    writes: bool = False  # recorded in the audit log even when it succeeds
    resource: str = ""  # the parameter in the path that names a resource; empty: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(Generic[R, P, B]):
    """One method of one path. Handlers and clients are type-checked against it."""

    name: str  # the operation id in the OpenAPI document
    method: str
    path: str  # below BASE, with its parameters: /resources/{id}
    right: Right
    tag: str
    summary: str
    description: str = ""
    # What it takes.
    # Query parameters, and headers if they are marked with `header`.
    parameters: type[P] = cast(Any, NoParameters)  # noqa: RUF009 - a cast creates nothing
    body: type[B] | None = None
    files: bool = False  # the body may also be a form, with files beside it
    # What it returns.
    response: type[R]
    success: str = "The result."  # describes the response with status 200
    media_type: str = JSON
    lines: type[Struct] | None = None  # with `Accept: application/x-ndjson`: one of these per line
    statuses: Mapping[int, str] = field(default_factory=dict)  # further statuses that have the same response
    problems: tuple[int, ...] = ()  # statuses of problem documents, beyond those that every endpoint has

    # Two endpoints with equal declarations would be a mistake: identity is what counts, and dicts are not hashable.
    __hash__ = object.__hash__

    @property
    def template(self) -> str:
        """The path as the router, the table of rights and the audit log know it."""
        return f"{BASE}{self.path}"


class Parameter(NamedTuple):
    """A query parameter or a header of an endpoint, from a field of its struct of parameters."""

    field: str  # the name of the attribute
    name: str  # the name in a request
    is_header: bool
    type: Any  # as annotated, with the limits
    default: Any  # NODEFAULT: it is required

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT

    @property
    def is_boolean(self) -> bool:
        return bool in (self.type, *get_args(self.type)[:1])


def header(description: str, example: Any = None, **limits: Any) -> Meta:
    """Like `doc`, for a parameter that is sent as a header. Its struct renames it, as `cheops-wait`."""
    return doc(description, example, extra={"in": "header"}, **limits)


def parameters_of(kind: type[Struct]) -> Iterator[Parameter]:
    for one in structs.fields(kind):
        metas = [meta for meta in get_args(one.type)[1:] if isinstance(meta, Meta)]  # of Annotated[type, *metas]
        is_header = any((meta.extra or {}).get("in") == "header" for meta in metas)
        yield Parameter(one.name, one.encode_name, is_header, one.type, one.default)


# -- rights -------------------------------------------------------------------------------------------

ANYONE = Right(is_open=True)
READ = Right(Role.VIEWER)
READ_RESOURCE = Right(Role.VIEWER, resource="id")
READ_SITE = Right(Role.VIEWER, whole=True)
CHANGE_RESOURCE = Right(Role.OPERATOR, writes=True, resource="id")
# Sites that are not involved forward operations of their clients, so these are open to sites too.
FORWARDABLE = Right(Role.OPERATOR, sites=True, writes=True, resource="id")
ADMIN = Right(Role.ADMIN, whole=True, writes=True)
ADMIN_READ = Right(Role.ADMIN, whole=True)


# -- parameters ---------------------------------------------------------------------------------------


FreshSeconds = Annotated[
    float,
    doc(
        "How many seconds to wait for the current state of the other sites; after that, the last known state.",
        ge=0,
        le=MAX_FRESH_S,
    ),
]


class FreshParameters(Struct, frozen=True, kw_only=True):
    fresh: FreshSeconds = 0.5


class PageParameters(Struct, frozen=True, kw_only=True):
    cursor: Annotated[str, doc("`next` of the previous page.", max_length=600)] = ""
    limit: Annotated[int, doc("The largest number of entries.", ge=1, le=500)] = 100


class FreshPageParameters(PageParameters, frozen=True, kw_only=True):
    fresh: FreshSeconds = 0.5


class TimeoutParameters(Struct, frozen=True, kw_only=True):
    timeout: Annotated[
        Annotated[float, doc("", ge=0, le=MAX_TIMEOUT_S)] | None,
        doc("How many seconds to wait for the sites; 30 if nothing is given."),
    ] = None
    prefer: Annotated[str | None, header("`wait=10` is the same as `timeout=10`.", "wait=10")] = None


class WaitParameters(TimeoutParameters, frozen=True, kw_only=True, rename={"cheops_wait": "cheops-wait"}):
    wait: Annotated[
        Wait | None,
        doc("Which sites to wait for: none, first (the site that takes it), quorum, or all (the default)."),
    ] = None
    cheops_wait: Annotated[Wait | None, header("The same as `wait`.")] = None
