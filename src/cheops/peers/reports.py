"""Reports that others pass on (cheops.engine.hub): how a site signs its own.

A message says what its sender has. Where another site passes that on, the connection does not prove whose word it is;
so it carries a signature of the site, over the resource and everything that it says.
"""

from msgspec.structs import replace

from cheops.engine.documents import Message, Report
from cheops.security.signatures import Sign
from cheops.store import codec


def content_of(resource: str, report: Report) -> bytes:
    """The bytes that the signature of a report covers."""
    return codec.encode_report(resource, replace(report, signature=""))


def signed(message: Message, site: str, sign: Sign | None) -> Message:
    """A message of this site with the signature that it needs to be passed on; without keys, as it is."""
    if sign is None or not message.for_others:
        return message
    (signature,) = sign([content_of(message.resource, message.report_of(site))])
    return replace(message, signature=signature)


def own_report(message: Message, sender: str) -> tuple[Report, ...]:
    """The report that the sender of a message has signed, if it wants that to be passed on."""
    return (message.report_of(sender),) if message.for_others else ()


def without(message: Message, sender: str, bad: set[int]) -> Message:
    """A message without these reports (by their numbers in `own_report` and `reports`)."""
    if not bad:
        return message
    own = len(own_report(message, sender))
    kept = [n for n in range(len(message.reports)) if n + own not in bad]
    is_own_good = message.for_others and 0 not in bad
    return replace(
        message,
        reports=tuple(message.reports[n] for n in kept),
        ages=tuple(message.ages[n] for n in kept if n < len(message.ages)),
        for_others=is_own_good,
        signature=message.signature if is_own_good else "",
    )
