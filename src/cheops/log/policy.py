"""Policies: which sites may operate on a resource, change its list of sites, or introduce another matrix.

A signature proves which site submitted an operation; the policy of the resource's type says whether that site may. All
sites must decide the same, or an operation that one accepted and another dropped would keep them apart forever. So the
decision depends on the operation and on what its author knew, never on what a site knows beyond that. The list of sites
that counts is the newest one in the operation's own past. It is kept while an operation can still arrive whose author
knew no newer one (see History.forgettable), with one exception: the author did not know the newer list when the others
forgot the old one. Such an operation is judged by all sites that were ever on a list; a site that joined later relies
on the others for that.

**Creator.** With `creator`, only the site that set the list of sites may set it again. So that is always the site that
created the resource, and no site has to remember it beside the list. The same holds for the matrix.

**Beginnings.** An operation with nothing before it begins a resource. Where another resource of that name exists, it is
taken only from one of that resource's sites, or if such a site has taken it (*endorsed* it). Two sites may create the
same resource at the same time, and a site that was just added may create it before it learns of that; but a site that
has nothing to do with it cannot take it over. Nor can a site that has, unless it may change the list anyway: its type
must be the same, and its list one that is known here, or that was changed to one that is known here. Here the decision
does depend on what is known: where two unrelated sites choose one name for two resources, the resources stay apart,
visibly.

**Two contents.** A site whose keys are stolen may sign two operations under one id (see engine/contents.py). The author
of a later operation may have known the one that does not stand. So an operation is taken if it is right by either.

What a seal has orphaned has no effect, whichever site submitted it, so it needs no check.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from msgspec.structs import replace

from cheops.log.causality import contains
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Kind, MatrixRef, Operation, OpId, Origin, Stamp
from cheops.log.seals import excludes, excluding_seal
from cheops.text import in_words

# In force where nobody has introduced one, or only operations that have no effect. Older than every other.
DEFAULT_MATRIX = MatrixRef(Matrix().hash, Stamp(0, 0, Origin("-", "-")))
_LEAST_SIGNERS = 2  # other sites, for which a site gives up what it has


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
    """What a site wants to do, as far as policies distinguish it."""

    site: str
    kind: Kind = Kind.NORMAL
    changes_sites: bool = False
    changes_matrix: bool = False


def order_problem(op: Operation, history: History) -> str | None:
    """What is wrong with the stamp of an operation, or None. All rules rest on stamps that extend causality, so this
    holds for every operation, whatever the policy."""
    if history.latest is None or op.stamp > history.latest:
        return None  # the usual case
    # The last one of each origin is enough: the stamps of one origin grow, by this rule.
    past = (history.ops.get(OpId(origin, n)) for origin, n in op.deps.items())
    late = next((before for before in past if before is not None and before.stamp >= op.stamp), None)
    return f"it is stamped earlier than {late.id}, which it depends on" if late else None


def operation_violation(  # noqa: PLR0913 - what a site knows beside the operation
    op: Operation,
    policy: Policy,
    history: History,
    *,
    endorsed: bool = False,
    others: Sequence[Operation] = (),
    waiting: Iterable[Operation] = (),
) -> str | None:
    """Why another site's operation is refused, or None. Everything it depends on must be here. It is endorsed if a site
    of the resource has accepted it. `others` are second contents of operations that it depends on, or of the one
    that began the resource if it begins one itself; `waiting` are operations that may depend on it."""
    if excluding_seal(op, history.seals):
        return None
    listing = history.listing_before(op)
    if listing is None or history.may_have_forgotten_newer(listing):
        listing = _substitute_listing(op, listing, history, endorsed=endorsed)
    if listing is None:
        problem = _beginning_violation(op, policy, history, others, endorsed=endorsed)
        return problem or _beginning_list_problem(op, policy, history, waiting, endorsed=endorsed)
    # Another content of the operation that set the list may have set another one, or none.
    contents = [other for other in others if other.id == listing.id]
    listings = [listing, *(other for other in contents if other.sites is not None)]
    if len(listings) <= len(contents) and (before := history.listing_before(listing)):
        listings.append(before)
    # Or the content that stands sets no list, and the other one, which the author may have known, does.
    listings += (other for other in others if _sets_later_list(other, listing, policy))
    problems = [_violation_by(one, op, policy, history, others) for one in listings]
    return None if None in problems else problems[0]


def _sets_later_list(op: Operation, listing: Operation, policy: Policy) -> bool:
    """Whether an operation sets a list of sites after another one, and its author may do that."""
    if op.sites is None or op.id == listing.id or op.stamp <= listing.stamp:
        return False
    return violation(Action(op.origin.site, op.kind, changes_sites=True), policy, listing) is None


def _violation_by(
    listing: Operation, op: Operation, policy: Policy, history: History, others: Sequence[Operation]
) -> str | None:
    if problem := _inconsistency(op, listing, history, others):
        return problem
    introduces = op.matrix.introduced == op.stamp
    changes = op.kind is Kind.SITES or (op.sites is not None and op.sites != listing.sites)
    return violation(Action(op.origin.site, op.kind, changes, introduces), policy, listing)


def seal_violation(
    op: Operation, listings: Sequence[Operation], gone: Collection[str], history: History, takers: Collection[str]
) -> str | None:
    """Why the seal of another site's operation is refused at a site, or None. `listings` are the contents of the
    operation that set the list of sites that its author knew; `gone` are sites that were removed for good, `takers` the
    site itself and those that have taken the operation."""
    if op.seal is None or excluding_seal(op, history.seals):
        return None
    left_out = [set(one.sites or ()).difference(op.seal.sites, gone) for one in listings]
    if left_out and all(left_out):
        return f"its seal leaves out {in_words(sorted(left_out[0]))}, which its list of sites names"
    silent = {*op.seal.sites, *gone}
    lost = next((one for one in history.effective if one.origin.site not in silent and excludes(op, one)), None)
    if lost is None or _is_outvoted(op.seal.sites, history, gone, takers):
        return None
    return f"its seal would take the effect of {lost.id}, and {lost.origin.site} did not sign it"


def _is_outvoted(signers: Collection[str], history: History, gone: Collection[str], takers: Collection[str]) -> bool:
    """Whether all other sites of a resource have signed or taken a seal that does not know what this site has. Then
    this site began it, or took what another began, without knowledge of the one that they have, and gives way. A single
    signer may be one whose keys are stolen."""
    others = set(history.site_list).difference(gone, takers)
    return others.issubset(signers) and len(set(signers)) >= _LEAST_SIGNERS


def _substitute_listing(
    op: Operation, before: Operation | None, history: History, *, endorsed: bool
) -> Operation | None:
    """The list by which to judge an operation if the list that its author knew may be forgotten here: the last list
    before it that is left, or the oldest of all, extended to every site that was ever on a list. None for an operation
    that begins a resource.

    A site that was removed from the list may still send what it submitted before. A site that joined after the list was
    forgotten learns from an endorsement that the origin was on it."""
    is_beginning = not op.deps and op.seq == 1
    listing = before or (history.oldest_listing if history.floor and not is_beginning else None)
    if listing is None:
        return None
    sites = history.ever_listed.union(origin.site for origin in history.known)
    if endorsed:
        sites.add(op.origin.site)
    return replace(listing, sites=tuple(sorted(sites)))


def violation(act: Action, policy: Policy, listing: Operation) -> str | None:
    """Why a site may not do this to an existing resource, or None. `listing` is the operation that set its list."""
    involved = listing.sites or ()
    if act.kind is Kind.SEAL:  # sites submit seals by themselves, so `operate` does not apply
        return None if act.site in involved else _violation_text("operate", SiteGroup.INVOLVED, act.site, "", involved)
    if act.kind is not Kind.SITES and not _allows(policy.operate, act.site, "", involved):
        return _violation_text("operate", policy.operate, act.site, "", involved)
    creator = listing.origin.site
    if act.changes_sites and not _allows(policy.sites, act.site, creator, involved):
        return _violation_text("sites", policy.sites, act.site, creator, involved)
    author = _author_of(listing.matrix) or creator
    if act.changes_matrix and not _allows(policy.matrix, act.site, author, involved):
        return _violation_text("matrix", policy.matrix, act.site, author, involved)
    return None


def creation_violation(site: str, sites: Collection[str], policy: Policy) -> str | None:
    """Why a site may not create a resource at these sites, or None."""
    if _allows(policy.operate, site, site, sites):
        return None
    return _violation_text("operate", policy.operate, site, "", sites)


def is_participant(site: str, history: History) -> bool:
    """Whether a site takes part in a resource, as far as is known: it was on a list, or has submitted an operation."""
    return site in history.ever_listed or any(origin.site == site for origin in history.known)


def may_have_taken(site: str, history: History) -> bool:
    """Whether a site may have taken operations of a resource, as far as is known here: it was on a list, or nothing is
    known of the resource yet, not even who has it."""
    return not history.known or site in history.ever_listed


def _beginning_violation(
    op: Operation, policy: Policy, history: History, others: Iterable[Operation], *, endorsed: bool
) -> str | None:
    """Why another site may not begin a resource, or None. Its type may be that of any content of what began it here."""
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
    held, first = history.ops.get(op.id), history.first or op
    types = {first.rtype, *(other.rtype for other in others if other.id == first.id)}
    if op.rtype not in types and (held is None or held.deps):
        return f"it is of type '{op.rtype}', and a resource of this name is of type '{first.rtype}'"
    return None


def _beginning_list_problem(
    op: Operation, policy: Policy, history: History, waiting: Iterable[Operation], *, endorsed: bool
) -> str | None:
    """Why the list of sites of another beginning does not count, or None."""
    held = history.ops.get(op.id)
    if policy.operate is SiteGroup.MESH or (held is not None and not held.deps):
        return None  # of a second content, the list that it would leave out may be that of the first
    if endorsed and (policy.sites is not SiteGroup.CREATOR or _is_older_list(op, history)):
        return None  # the site that has taken it may change the list too, or the list stays what it is
    if _leads_to_known_list(op, waiting, history):
        return None
    return _list_problem(op, policy, history)


def _is_older_list(op: Operation, history: History) -> bool:
    return history.site_list_op is not None and op.stamp < history.site_list_op.stamp


def _leads_to_known_list(op: Operation, waiting: Iterable[Operation], history: History) -> bool:
    """Whether a beginning and what waits for it can become one with what is here. A site that was added may have begun
    the resource before it learned of that: then both lead to the same list. What is here must keep its effect: anyone
    can begin a resource, seal it, and then name a list that is known."""
    after = [other for other in waiting if op.is_before(other)]
    if any(excludes(sealing, one) for sealing in after if sealing.seal for one in history.effective):
        return False
    return any(_has_listing(history, set(other.sites)) for other in after if other.sites is not None)


def _has_listing(history: History, sites: AbstractSet[str]) -> bool:
    """Whether a list that is kept here names these sites."""
    return any(sites == set(op.sites or ()) for op in history.listings if op.id not in history.orphans)


def _list_problem(listing: Operation, policy: Policy, history: History) -> str | None:
    """Why a list of sites that nothing here leads to does not count, or None: it is another one, and its author may not
    change the list."""
    sites, ours = set(listing.sites or ()), history.site_list_op
    if ours is None or _has_listing(history, sites):
        return None
    problem = violation(Action(listing.origin.site, listing.kind, changes_sites=True), policy, ours)
    return f"a resource of this name has another list of sites, and {problem}" if problem else None


def draft_violation(op: Operation, draft: Operation, policy: Policy) -> str | None:
    """Why another site may not begin a resource that this site is just beginning with a draft, or None."""
    if op.rtype != draft.rtype:
        return f"it is of type '{op.rtype}', and this site begins a resource of this name of type '{draft.rtype}'"
    if set(op.sites or ()) == set(draft.sites or ()):
        return None
    problem = violation(Action(op.origin.site, op.kind, changes_sites=True), policy, draft)
    return f"this site begins a resource of this name with another list of sites, and {problem}" if problem else None


def snapshot_violation(ops: Sequence[Operation], policy: Policy, history: History, gone: Collection[str]) -> str | None:
    """Why the newest list of sites in a snapshot does not count here, or None: the lists in it do not lead there from
    the one that counts here. What was in between may be forgotten; then the sites that are known here have signed it.
    """
    ours, problem = history.site_list_op, None
    for listing in sorted((op for op in ops if op.sites is not None), key=lambda op: op.stamp):
        if ours is None or listing.stamp < ours.stamp or contains(history.known, listing.id):
            continue
        problem = violation(Action(listing.origin.site, listing.kind, changes_sites=True), policy, ours)
        if problem is None or _has_listing(history, set(listing.sites or ())) or _is_vouched(listing, ours, ops, gone):
            ours, problem = listing, None
    return f"a resource of this name has another list of sites, and {problem}" if problem else None


def _is_vouched(listing: Operation, ours: Operation, ops: Sequence[Operation], gone: Collection[str]) -> bool:
    """Whether all sites of the list that counts here have signed a seal after another one."""
    sites = set(ours.sites or ()).difference(gone)
    return any(
        op.seal and len(op.seal.sites) > 1 and sites.issubset(op.seal.sites) and listing.is_before(op) for op in ops
    )


def _inconsistency(op: Operation, listing: Operation, history: History, others: Sequence[Operation]) -> str | None:
    """What is wrong with an operation that no correct site sends: it would follow other rules."""
    likely = (listing, *others)
    if not _knows_its_matrix(op, likely, history):
        return "it names a matrix that no operation before it introduced"
    if not _is_in_past(op, likely, history, lambda other: other.rtype == op.rtype):
        return f"it is of type '{op.rtype}', and the resource is of type '{listing.rtype}'"
    return None


def _knows_its_matrix(op: Operation, likely: Iterable[Operation], history: History) -> bool:
    """Whether an operation introduces its matrix, or depends on its introducer. The introducer may be forgotten where a
    newer matrix is known: then the older one cannot come into force, and does no harm."""
    if op.matrix.introduced == op.stamp or op.matrix == DEFAULT_MATRIX:
        return True
    if history.floor and history.adopted and op.matrix.introduced < history.adopted.introduced:
        return True
    return _is_in_past(op, likely, history, lambda other: other.matrix == op.matrix)


def _is_in_past(
    op: Operation, likely: Iterable[Operation], history: History, is_wanted: Callable[[Operation], bool]
) -> bool:
    """Whether such an operation comes before this one, as all of `likely` do. Usually it is one of these, or one of the
    latest operations."""
    return any(map(is_wanted, likely)) or any(
        is_wanted(other) and other.is_before(op) for other in reversed(history.ops.values())
    )


def _author_of(matrix: MatrixRef) -> str:
    """The site that introduced a matrix; empty for the default matrix."""
    return matrix.introduced.origin.site if matrix.introduced.time_ms else ""


def _allows(allowed: Allowed, site: str, creator: str, involved: Collection[str]) -> bool:
    if isinstance(allowed, tuple):
        return site in allowed
    return {SiteGroup.CREATOR: site == creator, SiteGroup.INVOLVED: site in involved, SiteGroup.MESH: True}[allowed]


_ACTIONS = {
    "operate": "operate on it",
    "sites": "change its list of sites",
    "matrix": "change its matrix",
}


def _violation_text(key: str, allowed: Allowed, site: str, creator: str, involved: Collection[str]) -> str:
    if isinstance(allowed, tuple):
        sites, written = in_words(allowed) if allowed else "nobody", f"[{', '.join(allowed)}]"
    else:
        sites = f"{creator}, which made it," if allowed is SiteGroup.CREATOR else in_words(sorted(involved))
        written = allowed.value
    return f"only {sites} may {_ACTIONS[key]} (policy '{key}: {written}' of its type), not {site}"
