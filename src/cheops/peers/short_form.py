"""Messages in few bytes: a resource of many sites has many origins in each vector, and many reports and replies that
say the same.

    origins   Each origin is in one list, in order, and everything else has its place in that (origin_tables.py).
    vector    Per place the number plus one, 0 for an origin that is not in it; zeros at the end are left out.
    reports   Those that say the same are one group. What they have of replies is what all of them have, and for each
              site what it has more.
    replies   Those that differ only in who ran the operation, and when, are rows below one of them.

The receiver has the very reports and replies that their sites signed. Whoever writes rows decides how much memory they
take here: hence the limits.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from cheops.engine.documents import Message, Report, Summary
from cheops.log.operation import (
    MAX_COUNT,
    MAX_NUMBER,
    MAX_ORIGINS,
    MAX_SITES,
    OUTPUT_HASH_BYTES,
    Number,
    OptionalName,
    Ordinal,
    Origin,
    Reply,
    Signature,
    Timing,
    Vector,
)

MOST_ENTRIES = 4_000_000  # in the vectors of one envelope
_MOST_WRITTEN = 1_000_000  # in those of one message: beyond that, reports are written as they are
_LARGE_REPLY = 1_000  # characters; such a reply is written as it is, with all others like it

_Place = Annotated[int, Meta(ge=0, lt=MAX_ORIGINS)]
_Values = Annotated[list[Annotated[int, Meta(ge=0, le=MAX_COUNT + 1)]], Meta(max_length=MAX_ORIGINS)]
_HashBytes = Annotated[bytes, Meta(max_length=OUTPUT_HASH_BYTES)]
_Change = tuple[_Place, Annotated[int, Meta(ge=0, le=MAX_COUNT + 1)]]


class ReportGroup(Struct, array_like=True):
    """Reports that say the same; the rest has an item for each of them."""

    known: _Values
    settled: _Values
    digest: OptionalName
    summary: Summary
    busy: bool
    closed: bool
    known_replies: _Values  # the least that any of them has
    first: Number  # the smallest of their numbers
    sites: list[_Place]
    numbers: list[Number]  # after the first
    ages: list[Number]
    changes: list[list[_Change]]  # of `known_replies`
    signatures: list[Signature]  # empty: none has any


class ReplyRows(Struct, array_like=True):
    """Replies that are like another one; one item for each."""

    like: int  # the place of that one in the documents of the envelope
    sites: list[_Place]
    numbers: list[Ordinal]
    begun: list[int]  # in ms after that one
    took: list[Number]
    outputs: list[_HashBytes]
    signatures: list[Signature]  # empty: none has any


class ShortForm(Struct, array_like=True):
    """What a message says of origins. `names` are all of them, or refer to them."""

    names: Annotated[list[str], Meta(max_length=MAX_ORIGINS)] | Annotated[bytes, Meta(max_length=64)]
    known: _Values
    known_replies: _Values
    replies_after: _Values
    settled: _Values
    reports: Annotated[list[ReportGroup], Meta(max_length=MAX_SITES)] = []


# -- writing ---------------------------------------------------------------------------------------------


def origins_of(message: Message) -> tuple[Origin, ...] | None:
    """All origins in what a message says, in their order; None if there are too many for the short form."""
    found: set[Origin] = set()
    found.update(message.known, message.known_replies, message.replies_after, message.settled)
    for report in message.reports:
        found.update((report.origin,), report.known, report.known_replies, report.settled)
    found.update(reply.origin for reply in message.replies)
    is_too_large = len(found) > MAX_ORIGINS or len(found) * len(message.reports) > _MOST_WRITTEN
    return None if is_too_large else tuple(sorted(found))


def shortened(message: Message, places: Mapping[Origin, int]) -> ShortForm:
    """What a message says of these origins, by their places; without the names."""
    return ShortForm(
        b"",
        _values(message.known, places),
        _values(message.known_replies, places),
        _values(message.replies_after, places),
        _values(message.settled, places),
        _report_groups(message, places) if message.reports else [],
    )


def without_short(message: Message) -> Message:
    """The rest of a message."""
    return replace(message, known={}, known_replies={}, replies_after={}, settled={}, reports=(), ages=())


def _values(vector: Vector, places: Mapping[Origin, int]) -> list[int]:
    if not vector:
        return []
    found = [places[origin] for origin in vector]
    values = [0] * (1 + max(found))
    for place, number in zip(found, vector.values(), strict=True):
        values[place] = number + 1
    return values


def _report_groups(message: Message, places: Mapping[Origin, int]) -> list[ReportGroup]:
    groups: dict[object, list[tuple[Report, int, list[int]]]] = {}
    for number, report in enumerate(message.reports):
        known, settled = _values(report.known, places), _values(report.settled, places)
        same = (tuple(known), tuple(settled), report.digest, report.summary, report.busy, report.closed)
        age_ms = message.ages[number] if number < len(message.ages) else 0
        groups.setdefault(same, []).append((report, age_ms, _values(report.known_replies, places)))
    return [_report_group(some, places) for some in groups.values()]


def _report_group(some: Sequence[tuple[Report, int, list[int]]], places: Mapping[Origin, int]) -> ReportGroup:
    one = some[0][0]
    # Shorter ones have zeros at their end.
    least = [min(values) for values in zip(*(values for _, _, values in some), strict=False)]
    first = min(report.number for report, _, _ in some)
    return ReportGroup(
        _values(one.known, places),
        _values(one.settled, places),
        one.digest,
        one.summary,
        one.busy,
        one.closed,
        least,
        first,
        [places[report.origin] for report, _, _ in some],
        [report.number - first for report, _, _ in some],
        [age_ms for _, age_ms, _ in some],
        [_changes(least, values) for _, _, values in some],
        _or_none([report.signature for report, _, _ in some]),
    )


def _changes(least: Sequence[int], values: Sequence[int]) -> list[_Change]:
    common = len(least)
    return [(place, value) for place, value in enumerate(values) if value != (least[place] if place < common else 0)]


def _or_none(signatures: list[str]) -> list[str]:
    return signatures if any(signatures) else []


def alike(replies: Iterable[Reply]) -> list[list[Reply]]:
    """The replies, those together that go into rows below the first of them."""
    groups: dict[object, list[Reply]] = {}
    for reply in replies:
        groups.setdefault(_likeness(reply) or id(reply), []).append(reply)
    return list(groups.values())


def _likeness(reply: Reply) -> object:
    """What replies below one another have in common; None for one that stands alone."""
    if not may_have_rows(reply):
        return None
    return (reply.resource, reply.op, reply.key, reply.status, reply.wiped, reply.replay, reply.detail, reply.output)


def may_have_rows(reply: Reply) -> bool:
    size = len(reply.detail) + len(reply.output) + len(reply.resource) + len(reply.key) + sum(map(len, reply.wiped))
    return not reply.applied and size <= _LARGE_REPLY


def rows_below(one: Reply, like: int, others: Sequence[Reply], places: Mapping[Origin, int]) -> ReplyRows:
    return ReplyRows(
        like,
        [places[reply.origin] for reply in others],
        [reply.n for reply in others],
        [reply.timing.at_ms - one.timing.at_ms for reply in others],
        [reply.timing.took_ms for reply in others],
        [bytes.fromhex(reply.output_hash) for reply in others],
        _or_none([reply.signature for reply in others]),
    )


# -- reading ---------------------------------------------------------------------------------------------


class Budget:
    """How much of something an envelope may still have."""

    def __init__(self, most: int, what: str) -> None:
        self._left = self._most = most
        self._what = what

    def spend(self, amount: int) -> None:
        """Raises ValueError if that is more than is left."""
        if amount > self._left:
            raise ValueError(f"an envelope with more than {self._most:,} {self._what}")
        self._left -= amount


def expanded(rest: Message, short: ShortForm, origins: Sequence[Origin], budget: Budget) -> Message:
    """The whole message; raises ValueError."""
    if rest.known or rest.known_replies or rest.replies_after or rest.settled or (rest.reports and short.reports):
        raise ValueError("a message says something twice")
    vectors = (short.known, short.known_replies, short.replies_after, short.settled)
    budget.spend(sum(len(values) - values.count(0) for values in vectors))
    reports, ages = rest.reports, rest.ages
    if short.reports:
        rows = [row for group in short.reports for row in _reports(group, origins, budget)]
        if len(rows) > MAX_SITES:
            raise ValueError(f"more than {MAX_SITES:,} reports")
        reports, ages = tuple(report for report, _ in rows), tuple(age_ms for _, age_ms in rows)
    return replace(
        rest,
        known=_vector(short.known, origins),
        known_replies=_vector(short.known_replies, origins),
        replies_after=_vector(short.replies_after, origins),
        settled=_vector(short.settled, origins),
        reports=reports,
        ages=ages,
    )


def _vector(values: Sequence[int], origins: Sequence[Origin]) -> dict[Origin, int]:
    if len(values) > len(origins):
        raise ValueError("a vector has more numbers than there are origins")
    return {origins[place]: value - 1 for place, value in enumerate(values) if value}


def _reports(group: ReportGroup, origins: Sequence[Origin], budget: Budget) -> list[tuple[Report, int]]:
    rows = len(group.sites)
    signatures = group.signatures or [""] * rows
    if not rows == len(group.numbers) == len(group.ages) == len(group.changes) == len(signatures):
        raise ValueError("a group of reports with columns of different lengths")
    if rows > MAX_SITES:
        raise ValueError(f"more than {MAX_SITES:,} reports")
    known, settled = _vector(group.known, origins), _vector(group.settled, origins)
    least = _vector(group.known_replies, origins)
    found = []
    for row, place in enumerate(group.sites):
        changes = group.changes[row]
        budget.spend(len(least) + len(changes))
        has = least | {_at(origins, where): value - 1 for where, value in changes if value}
        for where, value in changes:
            if not value:
                has.pop(_at(origins, where), None)
        number = group.first + group.numbers[row]
        if number > MAX_NUMBER:
            raise ValueError("a report with too large a number")
        said = (known, has, settled, group.digest, group.summary, group.busy, group.closed, signatures[row])
        found.append((Report(_at(origins, place), number, *said), group.ages[row]))
    return found


def replies_in(rows: ReplyRows, one: Reply, origins: Sequence[Origin]) -> list[Reply]:
    """The replies in rows below one; raises ValueError."""
    if not may_have_rows(one):
        raise ValueError("rows below a reply that has none")
    count = len(rows.sites)
    signatures = rows.signatures or [""] * count
    lengths = {count, len(rows.numbers), len(rows.begun), len(rows.took), len(rows.outputs), len(signatures)}
    if len(lengths) > 1:
        raise ValueError("rows of replies with columns of different lengths")
    if any(len(output) not in (0, OUTPUT_HASH_BYTES) for output in rows.outputs):
        raise ValueError("the hash of an output has a wrong length")
    found = []
    for row, place in enumerate(rows.sites):
        at_ms = one.timing.at_ms + rows.begun[row]
        if not 0 <= at_ms <= MAX_NUMBER:
            raise ValueError("a reply with a time that no clock shows")
        reply = replace(
            one,
            origin=_at(origins, place),
            n=rows.numbers[row],
            timing=Timing(at_ms, rows.took[row]),
            output_hash=rows.outputs[row].hex(),
            signature=signatures[row],
        )
        found.append(reply)
    return found


def sites_in(rows: ReplyRows, origins: Sequence[Origin]) -> set[str]:
    """The origins of the replies in rows; raises ValueError."""
    return {_at(origins, place) for place in rows.sites}


def _at(origins: Sequence[Origin], place: int) -> Origin:
    if place >= len(origins):
        raise ValueError("it names an origin by a place that the list has not")
    return origins[place]
