"""What other sites were refused: counted, and told in the audit log, as what people were refused is."""

from cheops.security.audit import Audit
from cheops.security.audit_entry import Entry
from cheops.security.refusals import Refusals
from cheops.text import printable, shortened

_MOST = 256  # characters of anything that came from outside


class Witness:
    def __init__(self, refusals: Refusals, audit: Audit) -> None:
        self._refusals = refusals
        self._audit = audit

    def refused(self, reason: str, site: str, what: str = "", resource: str = "", detail: str = "") -> None:
        """Something that a site sent or made was not taken, or is not done here."""
        named = f"{what} of '{resource}': {detail}" if what else detail
        self._refusals.count(reason, site, named)
        who = printable(shortened(site, _MOST))
        self._audit.refused(
            Entry(
                at=self._audit.now(),
                who=f"peer:{who}" if site else "nobody",
                source=who,
                what="document",
                resource=printable(shortened(resource, _MOST)),
                operation=printable(shortened(what, _MOST)),
                outcome="refused",
                reason=reason,
            )
        )
