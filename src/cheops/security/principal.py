"""Who asks, and how far that reaches. Pure: found out at the edge, decided here.

Roles include each other: a viewer reads, an operator changes resources, an admin decides who belongs to the
mesh and who may ask. A token may be limited (`Reach`) to types of resources, services and sites: what is
named is all that it reaches, and of the three the first two are one list, for a resource is either of a type
or of a service. It sees a resource that is at one of its sites, and changes one that is nowhere else.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: "Role") -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


class Kind(StrEnum):
    """How somebody is known."""

    LOCAL = "local"  # by the Unix socket: the agent's own user, or root
    TOKEN = "token"  # noqa: S105 - a word, no secret  # nosec B105
    PEER = "peer"  # another site, by its certificate
    OPEN = "open"  # anybody on this machine, with `security: none`
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Reach:
    """What a token is limited to; None: no limit of this kind."""

    types: frozenset[str] | None = None
    services: frozenset[str] | None = None
    sites: frozenset[str] | None = None

    @property
    def is_whole(self) -> bool:
        return self.types is None and self.services is None and self.sites is None

    def has_type(self, rtype: str, service: str | None) -> bool:
        """Whether a resource of this type, which for a service is one of its own, is within reach."""
        if self.types is None and self.services is None:
            return True
        return service in (self.services or ()) if service else rtype in (self.types or ())

    def sees(self, sites: Collection[str]) -> bool:
        """Whether what is at these sites may be looked at."""
        return self.sites is None or not sites or not self.sites.isdisjoint(sites)

    def beyond(self, sites: Collection[str]) -> list[str]:
        """Those of these sites at which nothing may be changed."""
        return [] if self.sites is None else [site for site in sites if site not in self.sites]


EVERYWHERE = Reach()


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks. A site has no role: it may do what sites do. Nobody has none either."""

    kind: Kind
    name: str = ""
    role: Role | None = None
    reach: Reach = EVERYWHERE
    token: str = field(default="", compare=False)  # the id of the token; not its secret
    by_cookie: bool = False  # a browser adds a cookie by itself, so that alone is no proof of intent

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
    """Who hands on what a client asked for is held to that client's limits."""
    return replace(who, reach=reach)
