"""Bugs of the kinds that the simulator did not find before it played more: status, disks, incarnations, membership."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from cheops.engine import (
    incarnation,
    ledger,
    replies,
    retention,
    tombstones,
)
from cheops.engine.documents import Piece
from cheops.engine.events import SitesRemoved
from cheops.engine.evidence import Evidence, Presence
from cheops.engine.mailboxes import Inbox
from cheops.engine.pieces import OutgoingSnapshot
from cheops.engine.progress import PeerProgress
from cheops.engine.replica import RemovedSites, Replica
from cheops.log import history, rules, seals
from cheops.log.causality import contains
from cheops.log.history import History
from cheops.log.operation import Operation, Origin
from cheops.peers.watermark import StoreStarts
from cheops.sim.node import Disk

_SHORT_QUEUE = 2  # about the share of one site in the profile `members`


# -- what the status says --------------------------------------------------------------------------------------


@contextmanager
def silence_means_lacking() -> Iterator[None]:
    """What peers have is forgotten when a resource leaves memory; what is not known of them counts as missing."""
    with (
        patch.object(ledger, "_progress", lambda _replica: None),
        patch.object(Evidence, "_absence", lambda _self, _op: Presence.LACKS),
    ):
        yield


def absence_means_done() -> AbstractContextManager[object]:
    """What a site passes over while it is off the list counts as run there when it is on the list again."""
    return patch.object(Evidence, "_may_have_been_absent", False)


def reports_of_lost_stores() -> AbstractContextManager[object]:
    """The saved report of a peer counts although its store was replaced since."""
    true = ledger._load_peers

    def trusting(replica: Replica) -> None:
        met, replica.met = replica.met, {}
        true(replica)
        replica.met = met

    return patch.object(ledger, "_load_peers", trusting)


def damage_unseen() -> AbstractContextManager[object]:
    """Stored documents are not verified when they are read."""
    return patch.object(Disk, "damaged", lambda _self, _resource: [])


# -- what was not found before sites were reborn, forgotten and admitted again, and explanations were read -------------


def earlier_views_kept() -> AbstractContextManager[object]:
    """What a site had before it lost its disk, it is taken to have still."""
    return patch.object(Replica, "forget_incarnation", lambda *_: None)


def forgotten_before_the_superseder_is_known() -> AbstractContextManager[object]:
    return patch.object(History, "_is_within", lambda _self, op, stable: contains(stable, op.id))


def leavers_never_told() -> AbstractContextManager[object]:
    return patch.object(Replica, "targets", lambda self: (site for site in self.sites if site != self.site))


def interrupted_replays_forgotten() -> AbstractContextManager[object]:
    """A crash makes a site forget that a replay was interrupted. For a replay from a base this is harmless, because the
    ledger names the keys that are dirty as well; after a replay from the reset nothing else does."""
    return patch.object(ledger, "save_unfinished_replay", lambda *_, **__: None)


def checkpoints_without_a_seal() -> AbstractContextManager[object]:
    """A site makes checkpoints when all have settled everything, and waits for no seal. As long as no site is away, all
    that are still to come know that; one that is admitted again does not."""
    return patch.object(retention, "is_sealed", lambda _replica: True)


def superseded_comes_back() -> AbstractContextManager[object]:
    """What is superseded itself supersedes nothing any more, also what had no effect because of it."""
    return patch.object(rules.Superseders, "beats", lambda *_: False)


def dropped_replies_mean_superseded() -> AbstractContextManager[object]:
    """A reply that others have dropped before it came here is taken for one that never was."""
    return patch.object(replies, "_may_be_unseen", lambda *_: False)


def absence_is_denied() -> AbstractContextManager[object]:
    """A site that was forgotten and admitted again takes what the others did without it for a forgery."""
    return patch.object(RemovedSites, "change", without_admissions(RemovedSites.change))


def without_admissions(true: Callable[..., set[str]]) -> Callable[..., set[str]]:
    def change(self: RemovedSites, event: SitesRemoved) -> set[str]:
        back = true(self, event)
        self.ever = self
        return back

    return change


@contextmanager
def an_old_copy_goes_unnoticed() -> Iterator[None]:
    with (
        patch.object(incarnation, "proof_in", lambda *_: None),
        patch.object(StoreStarts, "is_later", lambda *_: False),
    ):
        yield


def what_an_earlier_store_ran_is_run_again() -> AbstractContextManager[object]:
    return patch.object(incarnation, "note_earlier_stores", lambda *_: None)


def wrong_stamps_are_kept() -> AbstractContextManager[object]:
    def unchanged(*arguments: Any) -> Any:
        return arguments[2]

    return patch.object(incarnation, "withdraw", unchanged)


def full_queues_refuse_what_they_wait_for() -> AbstractContextManager[object]:
    """A full queue of waiting operations takes nothing, not even the one that the others wait for."""
    true = Inbox.hold

    def hold(self: Inbox, op: Operation, *, endorsed: bool = False) -> None:
        if op.id in self.waiting or len(self.waiting) < _SHORT_QUEUE:
            true(self, op, endorsed=endorsed)

    return patch.object(Inbox, "hold", hold)


def every_message_clears_the_pacing() -> AbstractContextManager[object]:
    """Whatever a site says while a batch is on its way to it, it is sent a batch again."""
    return patch.object(PeerProgress, "_is_batch_acknowledged", lambda self, _now_ms: self._batch is not None)


@contextmanager
def pieces_are_never_sent_again() -> Iterator[None]:
    """A piece of a snapshot that is lost is taken for one that has come."""

    def next_piece(self: OutgoingSnapshot) -> Piece:
        self.held = min(self.held + 1, len(self.parts))
        return Piece(self.id, self.held, len(self.parts))

    with (
        patch.object(OutgoingSnapshot, "next_piece", property(next_piece)),
        patch.object(OutgoingSnapshot, "note_held", lambda _self, held: held is not None),
    ):
        yield


def lone_seals_replace_common_ones() -> AbstractContextManager[object]:
    """A site that seals alone forgets the seal of several sites, which alone says what has no effect."""
    return patch.object(history, "lasting", lambda found: (seals.latest(found), None))


def withdrawn_is_waited_for() -> AbstractContextManager[object]:
    """A site waits for what another one made under an old copy of its store, and has taken back."""
    return patch.object(incarnation, "release_stranded", lambda *_: None)


# -- deleted resources -----------------------------------------------------------------------------------------


def tombstones_are_dropped_without_a_promise() -> AbstractContextManager[object]:
    """A site drops a deleted resource when its time has come, whatever the others do."""
    return patch.object(tombstones, "unconfirmed", lambda _replica: set())


def promises_never_end() -> AbstractContextManager[object]:
    """A site that has promised to add nothing to a deleted resource keeps to that when another one goes on with it."""
    return patch.object(Replica, "is_closed", property(lambda replica: replica._closed_at is not None))


def numbers_are_given_again() -> AbstractContextManager[object]:
    """A site that begins a resource again, which it has dropped, is the origin that it was."""
    return patch.object(tombstones, "origin_in", lambda own, _documents, _drops: Origin(own.site, own.store))


@contextmanager
def lives_are_mixed() -> Iterator[None]:
    """A resource that was deleted and one that was begun later under its name count as one."""
    with (
        patch.object(tombstones, "gives_way", lambda *_: False),
        patch.object(tombstones, "is_undecided", lambda *_: False),
        patch.object(tombstones, "without_earlier_life", lambda message: message),
        patch.object(tombstones, "is_dropped_here", lambda *_: False),
    ):
        yield
