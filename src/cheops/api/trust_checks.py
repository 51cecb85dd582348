"""What `cheops check` says of documents that were not believed, and of what waits because of that."""

import time
from collections.abc import Iterator

from cheops.api.models import Check, Level
from cheops.api.views.status import held_sentence
from cheops.engine.admission import waiting_for_refused
from cheops.engine.replica import Replica
from cheops.node import trust
from cheops.node.node import Node
from cheops.security.refusals import AGAINST_POLICY, Refused
from cheops.text import printable, shortened

_DOCUMENT = "docs/troubleshooting.md"
_JUST_NOW_S = 120.0  # whoever has such documents offers them again every few seconds
_MOST = 20
_HINTS = {
    trust.NOT_SIGNED: "it runs without 'security', or keeps documents from before it had a key",
    trust.WRONG_SIGNATURE: "somebody alters documents or makes them up: see who sends them",
    trust.UNKNOWN_KEY: "nobody who was asked knows its certificate: see that the site itself can be reached",
    trust.FOREIGN_STAMP: "its agent is not what it should be: see who runs it",
    trust.FORGOTTEN_ORIGIN: "they were made after the site was forgotten, and are of no concern any more",
    AGAINST_POLICY: "see that 'types.NAME.policy' is the same at all sites; if so, who sends them may not",
}


def trust_checks(node: Node) -> Iterator[Check]:
    if node.trust is None:
        return
    now_s = time.time()
    lately = [one for one in node.refusals.all() if now_s - one.last_s < _JUST_NOW_S]
    for one in lately:
        if one.reason == trust.FUTURE_STAMP:
            yield _ahead(one)
        elif one.reason in _HINTS:
            yield _refused(one)
    held = [replica for replica in node.pump.site.replicas.values() if waiting_for_refused(replica)]
    for replica in held[:_MOST]:
        yield _held(replica)


def _ahead(one: Refused) -> Check:
    hint = "let all sites keep time by NTP; they are taken as soon as our clock has come up to them"
    return _check("clocks", f"the stamps of {one.who} are not ahead", Level.FAILED, one.detail, hint)


def _refused(one: Refused) -> Check:
    name = f"what {one.who or 'others'} sent is taken"
    detail = f"{one.reason}, {one.times} times: {one.detail}"
    return _check("security", name, Level.WARNING, detail, _HINTS[one.reason])


def _held(replica: Replica) -> Check:
    name = f"nothing of '{printable(shortened(replica.resource))}' waits for what was refused"
    hint = f"'types.{replica.type.name}.policy' must be the same at all sites: compare them"
    return _check("security", name, Level.FAILED, held_sentence(replica), hint)


def _check(group: str, name: str, level: Level, detail: str, hint: str) -> Check:
    ok = level is not Level.FAILED
    return Check(
        group=group, name=name, level=level, ok=ok, detail=detail, hint=hint, anchor=f"{_DOCUMENT}#{group}"
    )
