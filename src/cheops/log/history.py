"""The merge of one resource, one operation at a time.

`add` takes operations in causal order. It maintains the result of `rules.merged` over all of them without looking at
all of them again. This is possible because within a class of replace types at most one operation is
effective, so a new one is compared with a handful; and because what is superseded never comes back. Two cases do look
at everything: another matrix is adopted, or a matrix lets concurrent operations stay beside a replacing one.

**Matrices.** Of all that were ever introduced, the one with the greatest stamp of introduction is in force, for all
operations at once. What had been superseded in the past of the operation that introduced it stays superseded: a site
may have forgotten it already (see `prune`).

**Orphans.** What a seal orphans (see seals.py) has no effect on anything: not on the application, the list of sites, or
the matrix. If a seal comes after what it orphans, everything is judged again.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from operator import attrgetter

from cheops.log.causality import NOTHING, Vector, contains, covers, joined
from cheops.log.contents import ContentSums
from cheops.log.epochs import NO_EPOCH, Epoch, FindMatrix, epoch_after, newest_matrix
from cheops.log.matrix import NO_RULES
from cheops.log.operation import Kind, MatrixRef, Operation, OpId, Origin, Stamp
from cheops.log.rules import (
    Fate,
    Rule,
    canonical,
    dispensable,
    fate_at_origin,
    fate_of_orphan,
    merged,
    reason_for,
    rule_between,
)
from cheops.log.seals import excludes, excluding_seal, is_of_one_site, lasting, proving_seals, standing

_stamp = attrgetter("stamp")


class History:
    """The operations of one resource that a site knows, and what follows from them."""

    def __init__(self, find_matrix: FindMatrix) -> None:
        self.find_matrix = find_matrix
        self._clear()

    def _clear(self) -> None:
        # The matrix in force, and the reference that was adopted: that with the greatest stamp of introduction.
        self.matrix = NO_RULES
        self.adopted: MatrixRef | None = None
        # Every operation that is kept, with a verdict. Each is effective, silent, or has a fate.
        self.ops: dict[OpId, Operation] = {}
        # Why an operation has no effect (rule 8). An operation with a fate never becomes effective again, except when
        # another matrix is adopted or a seal removes its superseder.
        self.fates: dict[OpId, Fate] = {}
        # The effective operations in canonical order (rule 6); and whether the only one is a deletion.
        self.effective: list[Operation] = []
        self.is_deleted = False
        # Everything up to here was taken, per origin without gaps; it may be forgotten since.
        self.known: dict[Origin, int] = {}
        # Up to here, what is not in `ops` was forgotten on purpose. Never beyond `known`.
        self.floor: dict[Origin, int] = {}
        # Up to here, a checkpoint holds the effect. Operations that are kept nevertheless have the fate FOLDED.
        self.folded: dict[Origin, int] = {}
        # The list of sites in force, and the operation that set it; and every site that was ever on a list.
        self.site_list: tuple[str, ...] = ()
        self.site_list_op: Operation | None = None
        self.ever_listed: set[str] = set()
        # The greatest stamp of all operations: the site's clock must go beyond it.
        self.latest: Stamp | None = None
        self.earliest: Stamp | None = None  # the least of them, while nothing was forgotten
        # For each matrix ever introduced, by the stamp of its introducer: the state at that moment.
        self.epochs: dict[Stamp, Epoch] = {}
        # The operations whose seals count, in the order of `seals.standing`; and what they orphan.
        self.seals: list[Operation] = []
        self.orphans: dict[OpId, Fate] = {}
        # Matrices that orphaned operations introduced, by stamp: never in force, even once the operation is forgotten.
        self.rejected_matrices: set[Stamp] = set()
        # What was forgotten here belonged to a resource that gives way to another; until `take_lost_root`.
        self.lost_root = False
        # Indexes into `ops`, so that nothing has to look at all of them.
        self.listings: list[Operation] = []  # those that set a list of sites
        self._introducers: list[Operation] = []  # those that introduced a matrix
        self._by_key: dict[str, dict[OpId, Operation]] = {}  # the effective ones
        self._silent: dict[OpId, None] = {}  # those that touch no application
        self._sealing: dict[OpId, Operation] = {}  # those that carry a seal
        self.contents = ContentSums({})

    def restore(  # noqa: PLR0913, PLR0917 - what a ledger has
        self,
        floor: Vector,
        folded: Vector,
        epochs: Mapping[Stamp, Epoch],
        rejected_matrices: Iterable[Stamp],
        adopted: MatrixRef | None,
        contents: Mapping[Origin, int] = NOTHING,
        ops: Iterable[Operation] = (),
    ) -> None:
        """Restore what is left of a history, from the store or a snapshot. The caller then adds the operations that are
        left, `ops`: which of their seals count is decided at once, whatever the order."""
        self._clear()
        self._sealing = {op.id: op for op in ops if op.seal}
        self.seals = standing(self._sealing.values())
        self.floor, self.known, self.folded = dict(floor), dict(floor), dict(folded)
        self.epochs = {introduced: epoch.copy() for introduced, epoch in epochs.items()}
        self.rejected_matrices = set(rejected_matrices)
        self.contents = ContentSums(contents)
        if adopted is not None:
            self.adopted, self.matrix = adopted, self.find_matrix(adopted.hash)

    # -- growing ------------------------------------------------------------------------------

    def add(self, op: Operation) -> int:
        """Add an operation; return the first place of `effective` that changed.

        The caller keeps causal order: everything in `op.deps` is known."""
        self.ops[op.id] = op
        self.known[op.origin] = max(self.known.get(op.origin, 0), op.seq)
        if op.seq > self.floor.get(op.origin, 0):
            self.contents.add(op)
        self.latest = op.stamp if self.latest is None else max(self.latest, op.stamp)
        self.earliest = op.stamp if self.earliest is None else min(self.earliest, op.stamp)
        self._index(op)
        if op.seal and self._take_seal(op):
            return self._reconsider()
        if self.seals and (fate := fate_of_orphan(op, self.seals)):
            return self._set_aside(op, fate)
        self.rejected_matrices.discard(op.stamp)  # it may have counted as an orphan's until now
        # The list of sites and the matrix do not depend on the application: they count even if the operation failed.
        self._note_site_list(op)
        has_settled_more = self._note_epoch(op)
        if fate := fate_at_origin(op):
            self.fates[op.id] = fate
        elif self._is_folded(op):
            self.fates[op.id] = Fate(Rule.FOLDED)
        elif op.id in self._settled():
            self.fates[op.id] = self._settled()[op.id]  # after a restart: its superseder may be forgotten
        if self._is_newer(op.matrix):
            return self._adopt(op)
        return self._recompute() if has_settled_more else self._take_effect(op)

    def _take_effect(self, op: Operation) -> int:
        if self._is_without_effect(op):
            return len(self.effective)
        # With overrides an operation that arrives late may move others; one that knows everything comes last anyway.
        if self.matrix.has_overrides and not covers({**op.deps, op.origin: op.seq}, self.known):
            return self._recompute()
        return self._merge_in(op)

    def _index(self, op: Operation) -> None:
        if op.sites is not None:
            self.ever_listed.update(op.sites)
            self.listings.append(op)
        if op.is_silent:
            self._silent[op.id] = None

    def _merge_in(self, op: Operation) -> int:
        for head in self.heads():
            if rule := rule_between(head, op, self.matrix, self._past()):
                self.fates[op.id] = Fate(rule, head.id)
                return len(self.effective)
        first = self._supersede_by(op)
        place = bisect_left(self.effective, op.stamp, key=_stamp)
        self.effective.insert(place, op)
        self.contents.add_effective(op)
        self._by_key.setdefault(op.key, {})[op.id] = op
        self.is_deleted = len(self.effective) == 1 and op.kind is Kind.DELETE
        return min(first, place)

    def heads(self) -> Iterable[Operation]:
        for name, ops in self._by_key.items():
            if self.matrix.is_replace_type(name):
                yield from ops.values()

    def _supersede_by(self, op: Operation) -> int:
        """Remove what the new operation supersedes from the effective list; return the place of the first."""
        beaten: list[Operation] = []
        for name in [name for name in self._by_key if self.matrix.replaces(op.key, name)]:
            for other in list(self._by_key[name].values()):
                if rule := rule_between(op, other, self.matrix, self._past()):
                    self.fates[other.id] = Fate(rule, op.id)
                    del self._by_key[name][other.id]
                    self.contents.add_effective(other, -1)
                    beaten.append(other)
        return self._take_out(beaten)

    def _take_out(self, beaten: list[Operation]) -> int:
        if not beaten:
            return len(self.effective)
        if self.matrix.has_overrides:
            return self._take_out_and_reorder(beaten)
        places = [bisect_left(self.effective, op.stamp, key=_stamp) for op in beaten]
        if len(beaten) == 1:  # the usual case, and the list may be long
            del self.effective[places[0]]
        else:
            gone = set(places)
            self.effective = [op for place, op in enumerate(self.effective) if place not in gone]
        return min(places)

    def _take_out_and_reorder(self, beaten: list[Operation]) -> int:
        """An operation that came after one of the removed may come earlier now."""
        gone = {op.id for op in beaten}
        before = self.effective
        self.effective = list(canonical((op for op in before if op.id not in gone), self.matrix))
        return _first_difference(before, self.effective)

    def reason(self, id_: OpId) -> Fate | None:
        """Why an operation has no effect; the same at every site that knows the same operations."""
        fate = self.fates.get(id_)
        if fate is None or fate.by is None:
            return fate
        return reason_for(self.ops[id_], self.heads(), self.matrix, self._past()) or fate

    # -- matrices ------------------------------------------------------------------------------

    def _is_newer(self, ref: MatrixRef) -> bool:
        if ref.introduced in self.rejected_matrices:
            return False
        return self.adopted is None or ref.introduced > self.adopted.introduced

    def _adopt(self, op: Operation) -> int:
        """Put the newest matrix in force, for all operations at once.

        Even if the same matrix is introduced a second time: what was superseded before that differs.
        """
        self.adopted = op.matrix
        self.matrix = self.find_matrix(op.matrix.hash)
        if len(self.ops) > 1:
            return self._recompute()
        return len(self.effective) if self._is_without_effect(op) else self._merge_in(op)

    def _note_epoch(self, op: Operation) -> bool:
        """Remember what was superseded in the past of the operation that introduced a matrix: computed from that past
        alone, whatever else this site knows by then. True if an epoch that was known before names more now."""
        introduced, was_forgotten = op.matrix.introduced, contains(self.floor, op.id)
        if introduced == op.stamp:
            self._introducers.append(op)
        after = (one for one in self._introducers if one is op or (was_forgotten and op.is_before(one)))
        names_more = [self._complete_epoch(one) for one in after if one.stamp in self.epochs]
        if introduced not in self.epochs and introduced not in self.rejected_matrices:
            self.epochs[introduced] = Epoch(dict(op.deps), self._superseded_before(op))
        return any(names_more)

    def _complete_epoch(self, introducer: Operation) -> bool:
        epoch = self.epochs[introducer.stamp]
        before = len(epoch.settled)
        epoch.settled.update(self._superseded_before(introducer, epoch.settled) | epoch.settled)
        return len(epoch.settled) > before

    def _superseded_before(self, op: Operation, known: Collection[OpId] = ()) -> dict[OpId, Fate]:
        """What is superseded in the past of an operation, by what is not known to be superseded there."""
        past = [other for other in self.ops.values() if other.is_before(op) and other.id not in self.orphans]
        in_force = newest_matrix(past, self.rejected_matrices)
        open_ = [other for other in past if other.id not in known]
        return epoch_after(open_, in_force, self.epochs, self.folded, self.find_matrix)

    def _recompute(self) -> int:
        before = self.effective
        settled = self._settled()
        aside = self.orphans.keys() | settled.keys()
        open_ = [op for op in self.ops.values() if op.id not in aside and not self._is_folded(op)]
        result = merged(open_, self.matrix, self._past())
        self.effective = list(result.effective)
        self.is_deleted = len(self.effective) == 1 and self.effective[0].kind is Kind.DELETE
        self.contents.set_effective(self.effective)
        folded = {op.id: Fate(Rule.FOLDED) for op in self.ops.values() if self._is_folded(op)}
        kept = {id_: fate for id_, fate in settled.items() if id_ in self.ops}
        self.fates = folded | result.fates | kept | self.orphans
        self._by_key = {}
        for op in self.effective:
            self._by_key.setdefault(op.key, {})[op.id] = op
        return _first_difference(before, self.effective)

    def _settled(self) -> dict[OpId, Fate]:
        return self._epoch().settled

    def _past(self) -> Vector:
        return self._epoch().past

    def _epoch(self) -> Epoch:
        return self.epochs.get(self.adopted.introduced, NO_EPOCH) if self.adopted else NO_EPOCH

    # -- sites ---------------------------------------------------------------------------------

    def _note_site_list(self, op: Operation) -> None:
        """The list of sites is that of the operation with the greatest stamp that sets one."""
        if op.sites is None:
            return
        if self.site_list_op is None or op.stamp > self.site_list_op.stamp:
            self.site_list, self.site_list_op = op.sites, op

    def listing_before(self, op: Operation) -> Operation | None:
        """The operation that set the list of sites that the author of another one knew."""
        newest = self.site_list_op
        if newest is not None and newest.is_before(op):
            late = (other for other in self.listings if other.id in self.orphans and other.stamp > newest.stamp)
            if not any(other.is_before(op) for other in late):  # its author may not have known the seal
                return newest  # the usual case
        seals = [sealing for sealing in self.seals if sealing.is_before(op)]
        past = (other for other in self.listings if other.is_before(op) and not excluding_seal(other, seals))
        return max(past, key=_stamp, default=None)

    def may_have_forgotten_newer(self, listing: Operation) -> bool:
        """Whether a newer list than this one may have been forgotten. Of the lists that all sites know, the newest is
        kept, and older ones only for other reasons."""
        return any(contains(self.floor, other.id) and other.stamp > listing.stamp for other in self.listings)

    @property
    def first(self) -> Operation | None:
        """The first operation that is left. What a seal orphans may be of another type."""
        return next((op for id_, op in self.ops.items() if id_ not in self.orphans), None)

    @property
    def oldest_listing(self) -> Operation | None:
        """The oldest operation that is left of those that set a list of sites."""
        return min(self.listings, key=_stamp, default=None)

    # -- seals ---------------------------------------------------------------------------------

    @property
    def root(self) -> Stamp | None:
        """Distinguishes several resources of the same name; None until several sites have sealed something."""
        return next((op.seal.root for op in self.seals if op.seal and not is_of_one_site(op)), None)

    def _take_seal(self, op: Operation) -> bool:
        """Add a seal; True if operations that are here already must be judged again."""
        before, root = self.seals, self.root
        self._sealing[op.id] = op
        self.seals = standing(self._sealing.values())
        if any(other not in self.seals for other in before):  # a senior resource of this name: ours gives way
            self.lost_root = root != self.root and bool(self.floor)
            return True
        if op not in self.seals:
            return False
        return any(excludes(op, other) for other in self.ops.values() if not self._is_folded(other))

    def _set_aside(self, op: Operation, fate: Fate) -> int:
        self.fates[op.id] = self.orphans[op.id] = fate
        if op.matrix.introduced == op.stamp:
            self.rejected_matrices.add(op.stamp)
        return len(self.effective)

    def _reconsider(self) -> int:
        """Judge everything again, without the operations that have become orphans."""
        if self.lost_root:  # the checkpoint belongs to the resource that gives way
            self.folded = {}
        open_ = [op for op in self.ops.values() if not self._is_folded(op)]
        fates = {op.id: fate_of_orphan(op, self.seals) for op in open_}
        self.orphans = {id_: fate for id_, fate in fates.items() if fate}
        orphans = [self.ops[id_] for id_ in self.orphans]
        counted = sorted((op for op in self.ops.values() if op.id not in self.orphans), key=_stamp)
        self.rejected_matrices.difference_update(op.stamp for op in counted)
        self.rejected_matrices.update(op.stamp for op in orphans if op.matrix.introduced == op.stamp)
        self.site_list, self.site_list_op, self._introducers = (), None, []
        # Their epochs counted orphans in: forget them, so that `_note_epoch` below computes them again.
        stale = [op for op in counted if op.matrix.introduced == op.stamp and any(o.is_before(op) for o in orphans)]
        for stamp in (*self.rejected_matrices, *(op.stamp for op in stale)):
            self.epochs.pop(stamp, None)
        for op in counted:
            self._note_site_list(op)
            self._note_epoch(op)
        self.adopted = newest_matrix(counted, self.rejected_matrices)
        self.matrix = self.find_matrix(self.adopted.hash) if self.adopted else NO_RULES
        return self._recompute()

    def take_lost_root(self) -> bool:
        """Whether the resource has just given way to another of its name; resets the flag."""
        lost, self.lost_root = self.lost_root, False
        return lost

    # -- forgetting ----------------------------------------------------------------------------

    def raise_floor(self, forgotten: Vector, contents: Mapping[Origin, int]) -> None:
        """Another resource of this name forgot these operations: they have no effect, and will never arrive."""
        for origin, number in forgotten.items():
            if number > self.floor.get(origin, 0):
                above = [op for op in self.ops.values() if op.origin == origin and op.seq > number]
                self.contents.set_floor(origin, contents.get(origin, 0), above)
        self.known = joined(self.known, forgotten)
        self.floor = joined(self.floor, forgotten)
        self.contents.note_change()

    def forgettable(self, stable: Vector) -> list[Operation]:
        """The operations that have no effect and that all sites know, so that they can be forgotten."""
        introducer = self.matrix_introducer()
        if introducer is not None and not contains(stable, introducer.id):
            return []  # a concurrent matrix may still arrive, and needs them
        without_effect = dict.fromkeys((*self.fates, *self._silent))  # few: they are forgotten as soon as possible
        listings = (self.site_list_op, introducer, self._listing_in(stable))
        needed = self._needed_seals(joined(self.floor, stable)) | {op.id for op in listings if op}
        idle = (self.ops[id_] for id_ in without_effect if id_ in self.ops and id_ not in needed)
        within = [op for op in idle if self._is_within(op, stable)]
        return dispensable(within, self.ops.values(), self.matrix, self._past())

    def prune(self, stable: Vector) -> list[OpId]:
        """Forget what has no effect and is known everywhere; return what was forgotten.

        Safe because every later operation is submitted with knowledge of all that is stable: it cannot be concurrent
        to what is forgotten, and what is superseded does not come back.
        """
        gone = [op.id for op in self.forgettable(stable)]
        if gone:
            floor = joined(self.floor, {o: min(n, self.known.get(o, 0)) for o, n in stable.items()})
            # Above the floor nothing was forgotten yet, so none is left out.
            above = (op for op in self.ops.values() if op.seq > self.floor.get(op.origin, 0))
            self.contents.raise_floor(op for op in above if contains(floor, op.id))
            self.floor = floor
        for id_ in gone:
            del self.ops[id_]
            for index in (self.fates, self._silent, self._sealing, self.orphans):
                index.pop(id_, None)
            for epoch in self.epochs.values():
                epoch.settled.pop(id_, None)
        if gone:
            self.listings = [op for op in self.listings if op.id in self.ops]
            self.seals = standing(self._sealing.values())
        return gone

    def fold(self) -> list[OpId]:
        """Forget everything, because a checkpoint holds its effect, but the operations that set the list of sites and
        the matrix, and the newest seals; return what was forgotten."""
        newest, common = lasting(self.seals)
        kept = (self.site_list_op, self.matrix_introducer(), newest, common, newest and self._proof_of(newest))
        gone = [op.id for op in self.ops.values() if op not in kept]
        for id_ in gone:
            del self.ops[id_]
        self.listings = [op for op in self.listings if op.id in self.ops]
        self.folded, self.floor = dict(self.known), dict(self.known)
        self.contents.fold()
        self.fates = {id_: Fate(Rule.FOLDED) for id_ in self.ops}
        self.epochs = {introduced: Epoch(epoch.past) for introduced, epoch in self.epochs.items()}
        self.effective, self.is_deleted, self._by_key, self.orphans = [], False, {}, {}
        self._silent = {id_: None for id_ in self._silent if id_ in self.ops}
        self._sealing = {id_: op for id_, op in self._sealing.items() if id_ in self.ops}
        self.seals = standing(self._sealing.values())
        return gone

    # -- contents ------------------------------------------------------------------------------

    def summary(self) -> str:
        """What is known, by content. Sites that know the same ids compare it: `contents.differ`."""
        return self.contents.current or self.contents.summary(self.known, self.folded)

    def replace(self, op: Operation) -> int:
        """Put an operation in the place of another one with its id; return the first place of `effective` that
        changed. No correct site gives an id twice, so this is rare, and everything is judged again."""
        old, before, known, listed = self.ops[op.id], self.effective, self.known, self.ever_listed
        kept = sorted((op if other.id == op.id else other for other in self.ops.values()), key=_stamp)
        if op.seq <= self.floor.get(op.origin, 0):
            self.contents.replace_below(old, op)
        # What followed from the other content is computed again; what nothing here introduces came with a snapshot.
        stale = {
            one.matrix.introduced for one in (old, *kept) if one.id == old.id or one.matrix.introduced == one.stamp
        }
        epochs = {introduced: epoch for introduced, epoch in self.epochs.items() if introduced not in stale}
        adopted = None if self.adopted and self.adopted.introduced in stale else self.adopted
        self.restore(self.floor, self.folded, epochs, self.rejected_matrices, adopted, self.contents.floor, kept)
        for other in kept:
            self.add(other)
        self.known = joined(self.known, known)
        self.ever_listed |= listed
        return _first_difference(before, self.effective)

    def matrix_introducer(self) -> Operation | None:
        """The operation that introduced the matrix in force. It is never forgotten: when the next matrix comes, this
        one decides what had been superseded before, and it must be in force again after a restart."""
        rejected = self.rejected_matrices
        self._introducers = [op for op in self._introducers if op.id in self.ops and op.stamp not in rejected]
        return max(self._introducers, key=_stamp, default=None)

    def _listing_in(self, stable: Vector) -> Operation | None:
        """The newest list of sites that all know, by which policies judge operations still to come (policy.py)."""
        counted = (op for op in self.listings if op.id not in self.orphans)
        return max((op for op in counted if contains(stable, op.id)), key=_stamp, default=None)

    def _needed_seals(self, floor: Vector) -> set[OpId]:
        """The newest seals; those that orphan something, also after a restart; those that prove the floor."""
        wanted = (*lasting(self.seals), *(excluding_seal(self.ops[id_], self.seals) for id_ in self.orphans))
        seals = {sealing.id: sealing for sealing in (*wanted, *proving_seals(self._sealing.values(), floor)) if sealing}
        return seals.keys() | {op.id for sealing in seals.values() if (op := self._proof_of(sealing))}

    def _proof_of(self, sealing: Operation) -> Operation | None:
        """The list of sites that names the author of a seal alone: others cannot take its word for that."""
        return self.listing_before(sealing) if is_of_one_site(sealing) else None

    def _is_within(self, op: Operation, stable: Vector) -> bool:
        by = self.fates[op.id].by if op.id in self.fates else None
        return contains(stable, op.id) and (by is None or contains(stable, by))

    def _is_folded(self, op: Operation) -> bool:
        return contains(self.folded, op.id)

    def _is_without_effect(self, op: Operation) -> bool:
        return op.is_silent or op.id in self.fates


def _first_difference(before: list[Operation], after: list[Operation]) -> int:
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (old, new) in pairs if old != new), min(len(before), len(after)))
