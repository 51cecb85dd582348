"""What a site does not take: why an operation is refused that is submitted, as things are or by a policy."""

from cheops.engine import retention
from cheops.engine.events import Submitted
from cheops.engine.replica import Replica
from cheops.log.matrix import Matrix
from cheops.log.operation import Kind, MatrixRef, Origin, Stamp
from cheops.log.policy import Action, creation_violation, violation

NO_RULES = Matrix()
_DEFAULT = MatrixRef(NO_RULES.hash, Stamp(0, 0, Origin("-", "-")))  # weaker than any that somebody brought


def matrix_in_force(replica: Replica) -> MatrixRef:
    """The reference of the matrix that counts for what is made now."""
    refs = [draft.matrix for draft in replica.drafts]
    if replica.history.adopted is not None:
        refs.append(replica.history.adopted)
    return max(refs, key=lambda ref: ref.introduced, default=_DEFAULT)


def refusal(replica: Replica, event: Submitted) -> str | None:  # noqa: PLR0911 - one per reason
    """Why an operation cannot be taken, or None if it can."""
    none: tuple[str, ...] = ()
    site_list = replica.history.site_list or next((d.sites for d in replica.drafts if d.sites), none)
    changes = event.kind is Kind.SITES
    if len(replica.drafts) >= replica.limits.drafts:
        return f"{len(replica.drafts)} operations are waiting already; try again later"
    if event.kind is Kind.NORMAL and (full := retention.fullness(replica)):
        return full
    if changes and not site_list:
        return "no such resource is known here"
    if not event.sites and (changes or not site_list):
        return "say at which sites the resource is to be"
    if replica.site not in (site_list or event.sites or none):
        where = ", ".join(site_list or event.sites or none)
        return f"this site, {replica.site}, is not involved; the resource is at {where}"
    named = set(event.sites or ())
    if site_list and named and not changes and named not in (set(site_list), set(replica.sites)):
        return f"the resource is at {', '.join(site_list)}; changing that is an operation of its own"
    return policy_violation(replica, event, replica.site)


def policy_violation(replica: Replica, event: Submitted, site: str) -> str | None:
    """Why the policy of the resource's type does not allow a site to do this, or None if it does."""
    policy = replica.policy_of(replica.type.name or event.rtype)
    if policy is None:
        return None
    lists = [op for op in (replica.history.site_list_op, *replica.drafts) if op and op.sites is not None]
    listing = max(lists, key=lambda op: op.stamp, default=None)  # as others will see it, drafts included
    if listing is None:
        return creation_violation(site, event.sites or (), policy)
    changes_matrix = event.matrix is not None and event.matrix.hash != matrix_in_force(replica).hash
    return violation(Action(site, event.kind, event.kind is Kind.SITES, changes_matrix), policy, listing)
