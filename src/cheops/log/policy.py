"""Who may say what of a resource: operate on it, change its list of sites, bring another matrix.

A signature tells whose word an operation is; the policy of the resource's type, whether that word counts. The
answer must be the same at every site, or what one took and another dropped would keep them apart for ever. So
it depends on the operation and on what was known when it was made, never on what a site knows beyond that:
the list of sites that counts is the newest in the operation's own past, and that one is never forgotten while
an operation can still come that was made under it (see History.forgettable), but for those of sites that had
not heard of a newer list when others forgot it: these are judged by whoever was on any list, of which a site
that came later has to take the word of the others.

**Creator.** With `creator`, whoever sets the list of sites is the one who set it before; so that is, by and
by, the one who made the resource, and no site has to remember it beside that list. The same for the matrix.

**Beginnings.** An operation with nothing before it begins a resource. Where another of that name is already,
it is taken only from a site of that one, or if such a site has taken it: two sites may make the same resource
without knowing of each other, or one may be put on its list, and make it anew before it hears of that; but a
stranger cannot take it over so. Here the answer does depend on what is known: two strangers who choose one
name for two resources keep them apart, visibly.

What a seal has estranged has no effect, whoever made it: it is taken like any other.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from msgspec.structs import replace

from cheops.log.history import History
from cheops.log.operation import Kind, MatrixRef, Operation
from cheops.log.seals import excluding_seal
from cheops.text import in_words


class SiteGroup(StrEnum):
    CREATOR = "creator"
    INVOLVED = "involved"  # the sites on the resource's list
    MESH = "mesh"  # every site: those that are not involved hand it on to one that is


Allowed: TypeAlias = SiteGroup | tuple[str, ...]  # or by name


@dataclass(frozen=True, slots=True)
class Policy:
    """Of a type. The same at all sites, as its matrix is."""

    sites: Allowed = SiteGroup.CREATOR
    matrix: Allowed = SiteGroup.CREATOR
    operate: Allowed = SiteGroup.INVOLVED


@dataclass(frozen=True, slots=True)
class Action:
    """What a site wants, as far as a policy has a say in it."""

    site: str
    kind: Kind = Kind.NORMAL
    changes_sites: bool = False
    changes_matrix: bool = False


def operation_violation(op: Operation, policy: Policy, history: History, *, endorsed: bool = False) -> str | None:
    """Why an operation of somebody else does not count; None if nothing is against it. Its past is here. One
    that is vouched for was taken by a site of the resource."""
    if excluding_seal(op, history.seals):
        return None
    listing = history.listing_before(op)
    if listing is None or history.may_have_forgotten_newer(listing):
        listing = _in_place_of_forgotten(op, listing, history, endorsed=endorsed)
    if listing is None:
        return _against_beginning(op, policy, history, endorsed=endorsed)
    if problem := _inconsistency(op, listing, history):
        return problem
    brings = op.matrix.introduced == op.stamp
    changes = op.kind is Kind.SITES or (op.sites is not None and op.sites != listing.sites)
    return violation(Action(op.origin.site, op.kind, changes, brings), policy, listing)


def _in_place_of_forgotten(
    op: Operation, before: Operation | None, history: History, *, endorsed: bool
) -> Operation | None:
    """Of an operation that begins nothing, and was made under a list that may be forgotten here: it is judged
    by the last list before it that is left, or the oldest of all, as if everybody were on it who ever was.
    Its origin had not heard of a newer one; and who was taken off a list can say so at any time. Who came to
    the resource after that list was forgotten knows from those who knew it that the origin was on it."""
    is_beginning = not op.deps and op.seq == 1
    listing = before or (history.oldest_listing if history.floor and not is_beginning else None)
    if listing is None:
        return None
    sites = history.ever_listed.union(origin.site for origin in history.known)
    if endorsed:
        sites.add(op.origin.site)
    return replace(listing, sites=tuple(sorted(sites)))


def violation(act: Action, policy: Policy, listing: Operation) -> str | None:
    """Why a site may not do this to a resource that is there, given the operation that set its list."""
    involved = listing.sites or ()
    if act.kind is Kind.SEAL:  # made by the sites themselves, in the course of things
        return None if act.site in involved else _told("operate", SiteGroup.INVOLVED, act.site, "", involved)
    if act.kind is not Kind.SITES and not _allows(policy.operate, act.site, "", involved):
        return _told("operate", policy.operate, act.site, "", involved)
    creator = listing.origin.site
    if act.changes_sites and not _allows(policy.sites, act.site, creator, involved):
        return _told("sites", policy.sites, act.site, creator, involved)
    author = _author_of(listing.matrix) or creator
    if act.changes_matrix and not _allows(policy.matrix, act.site, author, involved):
        return _told("matrix", policy.matrix, act.site, author, involved)
    return None


def creation_violation(site: str, sites: Collection[str], policy: Policy) -> str | None:
    """Why a site may not have a resource made at these sites."""
    if _allows(policy.operate, site, site, sites):
        return None
    return _told("operate", policy.operate, site, "", sites)


def is_participant(site: str, history: History) -> bool:
    """Whether a site has to do with a resource, as far as is known: on a list of it, or heard of before."""
    return site in history.ever_listed or any(origin.site == site for origin in history.known)


def _against_beginning(op: Operation, policy: Policy, history: History, *, endorsed: bool) -> str | None:
    site = op.origin.site
    if policy.operate is SiteGroup.MESH:
        return None
    if not op.sites or site not in op.sites:
        return f"{site} is not one of the sites of this resource"
    if problem := creation_violation(site, op.sites, policy):
        return problem
    if history.ever_listed and not endorsed and not is_participant(site, history):
        where = in_words(sorted(history.ever_listed))
        return (
            f"another resource of this name is at {where}, and {site} is not one of its sites. "
            f"If the two are to be one, put {site} on its list: cheops sites add"
        )
    return None


def _inconsistency(op: Operation, listing: Operation, history: History) -> str | None:
    """What an honest site never says: it would count as more than it is, or under other rules."""
    before = history.ops.get(op.id._replace(seq=op.seq - 1))
    if before is not None and before.stamp >= op.stamp:
        return f"it is stamped earlier than {before.id}, which its origin made before it"
    if not _knows_its_matrix(op, listing, history):
        return "it names a matrix that nobody brought before it"
    if not _is_in_past(op, listing, history, lambda other: other.rtype == op.rtype):
        return f"it is of type '{op.rtype}', and the resource is of type '{listing.rtype}'"
    return None


def _knows_its_matrix(op: Operation, listing: Operation, history: History) -> bool:
    """Whether an operation brings its matrix, or was made after one that did. That one may be forgotten where
    a newer matrix is known: then the older one takes over from nobody, and there is no harm in it."""
    if op.matrix.introduced == op.stamp:
        return True
    if history.floor and history.adopted and op.matrix.introduced < history.adopted.introduced:
        return True
    return _is_in_past(op, listing, history, lambda other: other.matrix == op.matrix)


def _is_in_past(op: Operation, listing: Operation, history: History, is_wanted: Callable[[Operation], bool]) -> bool:
    """Whether there is such an operation before this one. Mostly that of the list is, or one of the last."""
    return is_wanted(listing) or any(
        is_wanted(other) and other.is_before(op) for other in reversed(history.ops.values())
    )


def _author_of(matrix: MatrixRef) -> str:
    """Who brought a matrix; empty for the one that counts where nobody did."""
    return matrix.introduced.origin.site if matrix.introduced.time_ms else ""


def _allows(allowed: Allowed, site: str, creator: str, involved: Collection[str]) -> bool:
    if isinstance(allowed, tuple):
        return site in allowed
    return {SiteGroup.CREATOR: site == creator, SiteGroup.INVOLVED: site in involved, SiteGroup.MESH: True}[allowed]


_DEEDS = {
    "operate": "operate on it",
    "sites": "change its list of sites",
    "matrix": "change its matrix",
}


def _told(key: str, allowed: Allowed, site: str, creator: str, involved: Collection[str]) -> str:
    if isinstance(allowed, tuple):
        who, written = in_words(allowed) if allowed else "nobody", f"[{', '.join(allowed)}]"
    else:
        who = f"{creator}, which made it," if allowed is SiteGroup.CREATOR else in_words(sorted(involved))
        written = allowed.value
    return f"only {who} may {_DEEDS[key]} (policy '{key}: {written}' of its type), not {site}"
