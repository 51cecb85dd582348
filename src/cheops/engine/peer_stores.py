"""Which store each peer has, and whether all resources that it takes part in were looked at since.

A peer with another store may lack everything, and one that was removed from the mesh and is admitted again has missed
what happened meanwhile. Resources at rest count as known there, so all of them are loaded once (`Enumerate`). That
takes a while. Until the last one was loaded, the store keeps what it said of the peer before: after a crash in between,
the resources are enumerated again.
"""

from collections.abc import Collection, Mapping

from cheops.engine.documents import Message, Peers, Report, key_of
from cheops.engine.events import Effects
from cheops.engine.replica import Replica
from cheops.log.operation import origin_named


class PeerStores:
    def __init__(self) -> None:
        self.last: dict[str, str] = {}  # the incarnation that each peer had last; replicas share it
        # What this site's store says: an earlier incarnation, or none, while resources must still be looked at.
        self._saved: dict[str, str] = {}
        self._enumerated: set[str] = set()  # peers whose resources are being loaded

    def recover(self, saved: Mapping[str, str]) -> None:
        self._saved = dict(saved)
        self.last.update({peer: incarnation for peer, incarnation in saved.items() if incarnation})

    def meet(self, peer: str, incarnation: str, out: Effects) -> bool:
        """A peer is up; whether its resources must be looked at."""
        self.last[peer] = incarnation
        if peer not in self._saved:  # nothing here can count as known there
            self._save({peer: incarnation}, out)
        self._enumerated.discard(peer)
        return self._saved[peer] != incarnation

    def note_removed(self, sites: Collection[str], out: Effects) -> None:
        """Sites were removed from the mesh: if they are admitted again, they have missed something."""
        if any(self._saved.get(site) for site in sites):
            self._save({site: "" for site in sites if site in self._saved}, out)

    def note_enumerated(self, peer: str) -> None:
        if peer in self.last:
            self._enumerated.add(peer)

    def finish(self, out: Effects) -> None:
        """All resources that were enumerated have been loaded."""
        if self._enumerated:
            self._save({peer: self.last[peer] for peer in self._enumerated}, out)
            self._enumerated.clear()

    def _save(self, changed: Mapping[str, str], out: Effects) -> None:
        self._saved.update(changed)
        peers = Peers(dict(self._saved))
        out.documents[key_of(peers)] = peers

    def is_current(self, replica: Replica, peer: str, said: Message | Report) -> bool:
        """Whether a message is of the peer's present store, and of the last generation that was heard of."""
        sent, heard = origin_named(peer, said.incarnation), replica.peers.get(peer)
        if self.last.get(peer, sent.store) != sent.store:
            return False
        before = origin_named(peer, heard.incarnation) if heard and heard.incarnation else sent
        return before == sent or before.store != sent.store or before.generation <= sent.generation
