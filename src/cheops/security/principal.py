"""Who a client is, and what it may reach. Pure: `api` authenticates, and this module decides.

Roles include each other: a viewer reads, an operator changes resources, an admin decides on members of the mesh and on
tokens. A token may be limited (`Reach`) to resource types, services and sites. Types and services form one list,
because a resource has either a type or a service. A limited token sees a resource that is at one of its sites, and
changes only a resource that is at no other site.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum

from msgspec import Struct


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


class Kind(StrEnum):
    """How a client was authenticated."""

    LOCAL = "local"  # by the Unix socket: the agent's own user, or root
    TOKEN = "token"  # noqa: S105 - a word, no secret  # nosec B105
    PEER = "peer"  # another site, by its certificate
    OPEN = "open"  # any program on this machine, with `security: none`
    NOBODY = "nobody"


class Reach(Struct, frozen=True):
    """What a token is limited to; None: no limit of this kind."""

    types: frozenset[str] | None = None
    services: frozenset[str] | None = None
    sites: frozenset[str] | None = None

    @property
    def is_whole(self) -> bool:
        return self.types is None and self.services is None and self.sites is None

    def has_type(self, rtype: str, service: str | None) -> bool:
        """Whether resources of this type, or of this service, are within reach."""
        if self.types is None and self.services is None:
            return True
        return service in (self.services or ()) if service else rtype in (self.types or ())

    def sees(self, sites: Collection[str]) -> bool:
        """Whether a resource at these sites may be read."""
        return self.sites is None or not sites or not self.sites.isdisjoint(sites)

    def beyond(self, sites: Collection[str]) -> list[str]:
        """The sites among these at which nothing may be changed."""
        return [] if self.sites is None else [site for site in sites if site not in self.sites]


EVERYWHERE = Reach()


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated client. A site has no role: what it may do depends on the resources it has."""

    kind: Kind
    name: str = ""
    role: Role | None = None
    reach: Reach = EVERYWHERE
    token: str = field(default="", compare=False)  # the id of the token; not its secret
    by_cookie: bool = False  # browsers add cookies by themselves, so a cookie alone proves no intent

    def may(self, role: Role) -> bool:
        return self.role is not None and self.role.includes(role)

    @property
    def is_limited(self) -> bool:
        return not self.reach.is_whole

    def __str__(self) -> str:
        return f"{self.kind.value}:{self.name}" if self.name else self.kind.value


NOBODY = Principal(Kind.NOBODY)
OPEN = Principal(Kind.OPEN, role=Role.ADMIN)


def local(uid: int) -> Principal:
    return Principal(Kind.LOCAL, f"uid {uid}", Role.ADMIN)


def peer(site: str) -> Principal:
    return Principal(Kind.PEER, site)


def narrowed(who: Principal, reach: Reach) -> Principal:
    """A site that forwards a request is held to the limits of its client."""
    return replace(who, reach=reach)
