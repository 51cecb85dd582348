"""The matrix of a resource type: for an ordered pair of operation types, how the two combine.

From the entries follows one relation, *y replaces x* (the entry for (x, y) is take-one or reverse-order),
closed under transitivity. Types that replace anything are *replace types* and replace themselves. They fall
into classes: within one, types replace each other; between classes the relation is a partial order. The
topmost class holds two reserved keys, `delete` and forced operations: both leave nothing of what was.

Only an explicit take-both says that two types commute. A pair that is not defined is ordered (rule 7).

**Patterns.** The types of an entry may have a `*`, which stands for any text, and for the same text in both: by
(put *, put *) take-one, `put tags/x` replaces `put tags/x`. Two types that fit such an entry with different texts are
about different parts, so they commute; unless one part contains the other (`tags` and `tags/x`): these are ordered. An
entry without a `*` counts more than a pattern for the same pair.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property

from msgspec import Struct

from cheops.bounded import BoundedMap
from cheops.errors import ClientError
from cheops.log.operation import RESERVED_KEYS, Kind

FORCE_KEY, DELETE_KEY = RESERVED_KEYS[Kind.FORCE], RESERVED_KEYS[Kind.DELETE]
_RESERVED = frozenset((FORCE_KEY, DELETE_KEY))
ANY = "*"
_MOST_KNOWN = 4_096  # types, and pairs of texts, that a matrix with patterns remembers


class Result(StrEnum):
    """What to take of two operations that meet."""

    TAKE_ONE = "take-one"
    TAKE_BOTH = "take-both"
    KEEP_ORDER = "take-both-keep-order"
    REVERSE_ORDER = "take-both-reverse-order"

    @property
    def mirror(self) -> "Result":
        return _MIRROR.get(self, self)


_MIRROR = {Result.KEEP_ORDER: Result.REVERSE_ORDER, Result.REVERSE_ORDER: Result.KEEP_ORDER}
_ALIASES = {"take-both-any-order": Result.TAKE_BOTH}


class MatrixError(ClientError):
    """The entries contradict each other, or say something that is not a result."""

    reason = "matrix"

    def __init__(self, message: str, entry: "Entry | None" = None) -> None:
        super().__init__(message)
        self.entry = entry  # the one concerned, so that the reader of a file can name its line


class Entry(Struct, frozen=True):
    """What a user wrote: how `after` combines with `before`."""

    before: str
    after: str
    result: Result
    concurrent_both: bool = False  # when concurrent, both stay, the replacing one first

    def __str__(self) -> str:
        return f"({self.before}, {self.after}) {self.result}"


def result_named(text: str) -> Result:
    """The result that a text names; raises MatrixError."""
    try:
        return _ALIASES.get(text) or Result(text)
    except ValueError:
        known = ", ".join([*(result.value for result in Result), *_ALIASES])
        raise MatrixError(f"unknown result '{text}'; known results: {known}") from None


class Matrix:
    """Validated entries and what follows from them. Immutable; equal when the hash is."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = tuple(entries)
        self._patterns = tuple(entry for entry in self.entries if ANY in entry.before + entry.after)
        # With the patterns as they are written: any text is as good as another to find a contradiction.
        self._general = _Relations(self.entries)
        self._literal = _Relations(entry for entry in self.entries if entry not in self._patterns)
        self._by_texts: BoundedMap[frozenset[str], _Relations] = BoundedMap(_MOST_KNOWN)
        self._texts: BoundedMap[str, frozenset[str]] = BoundedMap(_MOST_KNOWN)
        # By types as they are asked for: a merge asks about the same few pairs again and again.
        self._by_names: BoundedMap[tuple[str, ...], _Relations] = BoundedMap(_MOST_KNOWN)
        for entry in self._literal.entries if self._patterns else ():
            self._about(entry.before, entry.after)  # raises for contradictions of both kinds

    @cached_property
    def hash(self) -> str:
        """Equal for equal rules, however they were written: in any order, with or without mirrors."""
        rules = [
            sorted([*pair, result.value] for pair, result in self._general.table.items()),
            sorted(self._general.concurrent_both),
        ]
        return hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Matrix) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for entry in self.entries for name in (entry.before, entry.after)))

    def explicit(self, before: str, after: str) -> Result | None:
        """What was written for this very pair."""
        return self._written.get((before, after))

    @cached_property
    def _written(self) -> dict[tuple[str, str], Result]:
        return {(entry.before, entry.after): entry.result for entry in reversed(self.entries)}

    def result(self, before: str, after: str) -> Result | None:
        """What was written for the pair or its mirror; None where it is not defined."""
        found = self._about(before, after).table.get((before, after))
        return Result.TAKE_BOTH if found is None and self._are_apart(before, after) else found

    def replaces(self, after: str, before: str) -> bool:
        """Whether an operation of `after` wipes what one of `before` did."""
        if after in _RESERVED:
            return True
        relations = self._about(after, before) if self._patterns else self._literal
        return before in relations.replaced.get(after, ())

    def is_replace_type(self, name: str) -> bool:
        relations = self._about(name) if self._patterns else self._literal
        return name in relations.replaced or name in _RESERVED

    def commutes(self, one: str, other: str) -> bool:
        """Rule 7: whether the order of two operations does not matter. Only an explicit take-both says so."""
        return self.result(one, other) is Result.TAKE_BOTH

    def both_stay_when_concurrent(self, after: str, before: str) -> bool:
        return (after, before) in self._about(after, before).concurrent_both

    @property
    def has_overrides(self) -> bool:
        return bool(self._general.concurrent_both)

    def wiped_by(self, name: str) -> tuple[str, ...]:
        """Everything that a run of this key wipes, in a form that can be stored with the run: keys and patterns."""
        if name in _RESERVED:
            return (ANY,)
        return tuple(sorted(self._about(name, ANY).replaced.get(name, ())))

    def class_of_pair(self, one: str, other: str) -> int:
        """The papers' classes: 1 commutes, 2 one replaces the other, 3 ordered."""
        if self.replaces(one, other) or self.replaces(other, one):
            return 2
        return 1 if self.commutes(one, other) else 3

    # -- patterns ------------------------------------------------------------------------------------------

    def _about(self, *names: str) -> "_Relations":
        """What the entries say about these types. `*` itself is a text: that of the patterns as they are written."""
        if not self._patterns:
            return self._literal
        if names in self._by_names:
            return self._by_names[names]
        found = self._by_names[names] = self._find_about(names)
        return found

    def _find_about(self, names: tuple[str, ...]) -> "_Relations":
        texts = frozenset().union(*(frozenset((ANY,)) if name == ANY else self._texts_of(name) for name in names))
        if not texts:
            return self._literal
        found = self._by_texts.get(texts)
        if found is None:
            found = self._by_texts[texts] = _Relations((*self._literal.entries, *self._written_out(texts)))
        return found

    def _texts_of(self, name: str) -> frozenset[str]:
        """What the `*` of the patterns stands for in a type."""
        found = self._texts.get(name)
        if found is None:
            sides = {side for entry in self._patterns for side in (entry.before, entry.after)}
            found = self._texts[name] = frozenset(text for side in sides if (text := text_in(side, name)))
        return found

    def _written_out(self, texts: frozenset[str]) -> Iterable[Entry]:
        given = {frozenset((entry.before, entry.after)) for entry in self._literal.entries}
        for entry in self._patterns:
            for text in sorted(texts):
                before, after = entry.before.replace(ANY, text), entry.after.replace(ANY, text)
                if frozenset((before, after)) not in given:
                    yield Entry(before, after, entry.result, entry.concurrent_both)

    def _are_apart(self, one: str, other: str) -> bool:
        """Whether two types are about different parts, neither of which contains the other."""
        for entry in self._patterns:
            for first, second in ((entry.before, entry.after), (entry.after, entry.before)):
                text, text_of_other = text_in(first, one), text_in(second, other)
                if text and text_of_other and not _contains(text, text_of_other):
                    return True
        return False


class _Relations:
    """What follows from entries whose types are taken as they are written."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = tuple(entries)
        self.table = _with_mirrors(self.entries)
        self.replaced = _closure(self.table)
        _check_closure(self.entries, self.replaced)
        self.concurrent_both = frozenset(_overrides(self.entries))


def text_in(pattern: str, name: str) -> str:
    """What the `*` of a pattern stands for in a name; empty if the name does not fit."""
    start, star, end = pattern.partition(ANY)
    fits = star and len(name) > len(start) + len(end) and name.startswith(start) and name.endswith(end)
    return name[len(start) : len(name) - len(end)] if fits else ""


def _contains(one: str, other: str) -> bool:
    """Whether one of two paths is the other, or above it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def is_wiped(wiped: tuple[str, ...], name: str) -> bool:
    """Whether a run that wiped these keys wiped this one."""
    return name in wiped or ANY in wiped or any(text_in(key, name) for key in wiped if ANY in key)


def _with_mirrors(entries: tuple[Entry, ...]) -> dict[tuple[str, str], Result]:
    table: dict[tuple[str, str], Result] = {}
    for entry in entries:
        if entry.before == entry.after and entry.result.mirror is not entry.result:
            raise MatrixError(
                f"{entry}: a type has no order with itself; leave the pair out, and it is ordered by time",
                entry,
            )
        for pair, result in (
            ((entry.before, entry.after), entry.result),
            ((entry.after, entry.before), entry.result.mirror),
        ):
            if table.setdefault(pair, result) is not result:
                raise MatrixError(f"{entry} contradicts ({pair[0]}, {pair[1]}) {table[pair]}", entry)
    return table


def _closure(table: Mapping[tuple[str, str], Result]) -> dict[str, frozenset[str]]:
    """For each type that replaces anything, everything it replaces, itself included."""
    direct: dict[str, set[str]] = {}
    for (before, after), result in table.items():
        if result in (Result.TAKE_ONE, Result.REVERSE_ORDER):
            direct.setdefault(after, {after}).add(before)
    changed = True
    while changed:
        changed = False
        for reached in direct.values():
            further = set().union(*(direct.get(name, ()) for name in reached)) - reached
            reached.update(further)
            changed = changed or bool(further)
    return {name: frozenset(reached) for name, reached in direct.items()}


def _check_closure(entries: tuple[Entry, ...], replaced: Mapping[str, frozenset[str]]) -> None:
    """An entry that says otherwise than what follows from the others is a contradiction."""
    for entry in entries:
        after_replaces = entry.before in replaced.get(entry.after, ())
        before_replaces = entry.after in replaced.get(entry.before, ())
        written = {
            Result.TAKE_ONE: (True, True),
            Result.TAKE_BOTH: (False, False),
            Result.KEEP_ORDER: (False, True),
            Result.REVERSE_ORDER: (True, False),
        }[entry.result]
        if (after_replaces, before_replaces) != written:
            after_wins = after_replaces and not written[0]
            one, other = (entry.after, entry.before) if after_wins else (entry.before, entry.after)
            raise MatrixError(f"{entry} contradicts the other entries, by which '{one}' replaces '{other}'", entry)


def _overrides(entries: tuple[Entry, ...]) -> Iterable[tuple[str, str]]:
    for entry in entries:
        if not entry.concurrent_both:
            continue
        match entry.result:
            case Result.KEEP_ORDER:
                yield (entry.before, entry.after)
            case Result.REVERSE_ORDER:
                yield (entry.after, entry.before)
            case _:
                raise MatrixError(f"{entry}: Concurrent goes with keep-order or reverse-order only", entry)


NO_RULES = Matrix()  # everything is ordered
