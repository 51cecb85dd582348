"""Reports that others pass on (cheops.engine.hub): how a site signs its own.

A message says what its sender has. Where another site passes that on, the connection does not prove whose word it is;
so it carries a signature of the site, over the resource and everything that it says.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from cheops.engine.documents import Message, Report
from cheops.security.signatures import Sign
from cheops.store import codec


def content_of(resource: str, report: Report) -> bytes:
    """The bytes that the signature of a report covers."""
    return codec.encode_report(resource, replace(report, signature=""))


class ReportSigner:
    """Signs the documents of one site, and its reports. Those that follow a commit are signed together with its
    documents: one signature for both, which each receiver checks once."""

    def __init__(self, site: str, sign: Sign, sign_committed: Sign) -> None:
        """`sign_committed` is called in the thread that commits, `sign` in the event loop."""
        self._site = site
        self._sign = sign
        self._sign_committed = sign_committed
        self._expected: list[bytes] = []  # what the next commit signs as well
        self._signatures: dict[bytes, str] = {}  # by content, of the last commit

    def expect(self, messages: Iterable[Message]) -> None:
        """The next commit comes before these messages; in the event loop. Signatures of earlier ones are not used any
        more: the key may be another one by now."""
        self._signatures = {}
        self._expected = list(dict.fromkeys(self._content(message) for message in messages if message.for_others))

    def sign_documents(self, contents: Sequence[bytes]) -> Sequence[str]:
        """The signatures of the documents of a commit; in the thread that commits."""
        expected, self._expected = self._expected, []
        if not expected:  # also where a commit is repeated, whose reports are signed
            return self._sign_committed(contents)
        signatures = self._sign_committed([*contents, *expected])
        self._signatures = dict(zip(expected, signatures[len(contents) :], strict=True))
        return signatures[: len(contents)]

    def signed(self, message: Message) -> Message:
        """A message with the signature that it needs to be passed on; in the event loop."""
        if not message.for_others:
            return message
        content = self._content(message)
        signature = self._signatures.get(content)
        if signature is None:
            (signature,) = self._sign([content])
        return replace(message, signature=signature)

    def _content(self, message: Message) -> bytes:
        return content_of(message.resource, message.report_of(self._site))


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
