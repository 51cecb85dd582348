"""The engine's hands: what it wants done reaches the parts of a site that do it (see pump.Hands)."""

import logging
from typing import TYPE_CHECKING

from cheops.engine.admission import REFUSED
from cheops.engine.events import Answer, Notify, Run, Save, Send
from cheops.security.refusals import AGAINST_POLICY

if TYPE_CHECKING:
    from cheops.node.node import Node

_log = logging.getLogger(__name__)


class Hands:
    def __init__(self, node: "Node") -> None:
        self._node = node

    def run(self, effect: Run) -> None:
        self._node.begin_run(effect)

    def send(self, effect: Send) -> None:
        if self._node.address_of(effect.peer):  # whom nobody knows, nobody answers
            self._node.note_interest((effect.peer,))
            self._node.links.send(effect.peer, effect.message)

    def answer(self, effect: Answer) -> None:
        self._node.waiting.take(effect)

    def notify(self, effect: Notify) -> None:
        _log.info("%s: %s %s %s", effect.resource, effect.what, effect.op or "", effect.detail)
        if effect.what == REFUSED:
            who = effect.op.origin.site if effect.op else ""
            what = str(effect.op or "a snapshot")
            self._node.witness.refused(AGAINST_POLICY, who, what, effect.resource, effect.detail)
        self._node.notifier.noticed(effect)

    def committed(self, saves: list[Save], last_seq: int) -> None:
        self._node.databases.committed(last_seq)
        self._node.notifier.committed(saves, last_seq)
        self._node.replicants.committed(saves)
        for hash_ in self._node.keeping.committed(saves):
            self._node.files.forget(hash_)
