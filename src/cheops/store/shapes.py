"""How the small parts of documents look in JSON: names, numbers, stamps, vectors; and their limits.

    origin  ["paris", "3f2a"]                 stamp   [1700000000000, 0, "paris", "3f2a"]
    op id   ["paris", "3f2a", 7]              vector  [["lyon", "91c0", 2], ["paris", "3f2a", 7]]

What has no order of its own is sorted, so that equal documents have equal bytes at every site.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from cheops.log.causality import Clock
from cheops.log.history import Epoch
from cheops.log.operation import Applied, OpId, Origin, Stamp, Timing
from cheops.log.rules import Fate, Rule
from cheops.store.converter import Shape

MAX_NAME_CHARACTERS = 1_000  # of a resource, a site, an incarnation, a key …
MAX_SITES = 10_000
MAX_FILES = 100  # of one operation
MAX_SIGNATURE_CHARACTERS = 2_000
MAX_NUMBER = 2**53 - 1  # what every reader of JSON takes exactly

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
MaybeName: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]
# Nothing that JSON would escape, so that it can be cut off (see codec.unsigned).
SignatureForm: TypeAlias = Annotated[str, Meta(max_length=MAX_SIGNATURE_CHARACTERS, pattern=r"^[A-Za-z0-9+/]*\Z")]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Ordinal: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]

_FileHash: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_OriginTuple: TypeAlias = tuple[Name, Name]
_OpIdTuple: TypeAlias = tuple[Name, Name, Ordinal]
_StampTuple: TypeAlias = tuple[Number, Number, Name, Name]
_VectorItem: TypeAlias = tuple[Name, Name, Number]
_AppliedTuple: TypeAlias = tuple[_OpIdTuple, MaybeName]
_FateTuple: TypeAlias = tuple[_OpIdTuple, Rule, _OpIdTuple | None]
_EpochTuple: TypeAlias = tuple[_StampTuple, list[_VectorItem], list[_FateTuple]]

# Few origins stand in very many documents: one object for each will do.
_origin = lru_cache(maxsize=4_096)(Origin)


def _pack_op_id(id_: OpId) -> tuple[str, str, int]:
    return (*id_.origin, id_.seq)


def _unpack_op_id(value: _OpIdTuple) -> OpId:
    site, incarnation, seq = value
    return OpId(_origin(site, incarnation), seq)


def _pack_stamp(stamp: Stamp) -> tuple[int, int, str, str]:
    return (stamp.time_ms, stamp.counter, *stamp.origin)


def _unpack_stamp(value: _StampTuple) -> Stamp:
    time_ms, counter, site, incarnation = value
    return Stamp(time_ms, counter, _origin(site, incarnation))


def _pack_vector(vector: Mapping[Origin, int]) -> list[tuple[str, str, int]]:
    items = [(site, incarnation, number) for (site, incarnation), number in vector.items()]
    items.sort()
    return items


def _unpack_vector(value: Iterable[_VectorItem]) -> dict[Origin, int]:
    return _distinct((_origin(site, incarnation), number) for site, incarnation, number in value)


def _pack_applied(applied: Applied) -> _AppliedTuple:
    return (_pack_op_id(applied.id), applied.key)


def _unpack_applied(value: _AppliedTuple) -> Applied:
    id_, key = value
    return Applied(_unpack_op_id(id_), key)


def _pack_fate(id_: OpId, fate: Fate) -> _FateTuple:
    return (_pack_op_id(id_), fate.rule, _OPTIONAL_OP_ID.pack(fate.by))


def _pack_epochs(epochs: Mapping[Stamp, Epoch]) -> list[_EpochTuple]:
    return sorted(
        (
            _pack_stamp(introduced),
            _pack_vector(epoch.past),
            sorted((_pack_fate(*item) for item in epoch.settled.items()), key=lambda fate: fate[0]),
        )
        for introduced, epoch in epochs.items()
    )


def _unpack_epochs(value: Iterable[_EpochTuple]) -> dict[Stamp, Epoch]:
    return _distinct(
        (_unpack_stamp(introduced), Epoch(_unpack_vector(past), _unpack_fates(settled)))
        for introduced, past, settled in value
    )


def _unpack_fates(value: Iterable[_FateTuple]) -> dict[OpId, Fate]:
    return _distinct((_unpack_op_id(id_), Fate(rule, _OPTIONAL_OP_ID.unpack(by))) for id_, rule, by in value)


def _distinct(items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, value in items:
        if key in result:
            raise ValueError(f"{key} stands twice where it may stand once")
        result[key] = value
    return result


_OP_ID = Shape(_pack_op_id, _unpack_op_id)
_OPTIONAL_OP_ID = _OP_ID.optional()
_STAMP = Shape(_pack_stamp, _unpack_stamp)
_STAMPS = Shape(lambda stamps: sorted(map(_pack_stamp, stamps)), lambda value: frozenset(map(_unpack_stamp, value)))

OriginForm: TypeAlias = Annotated[_OriginTuple, Shape(tuple, lambda value: _origin(*value))]
OpIdForm: TypeAlias = Annotated[_OpIdTuple, _OP_ID]
StampForm: TypeAlias = Annotated[_StampTuple, _STAMP]
StampsForm: TypeAlias = Annotated[list[_StampTuple], _STAMPS]
VectorForm: TypeAlias = Annotated[list[_VectorItem], Shape(_pack_vector, _unpack_vector)]
AppliedForm: TypeAlias = Annotated[list[_AppliedTuple], Shape(_pack_applied, _unpack_applied).each()]
EpochsForm: TypeAlias = Annotated[list[_EpochTuple], Shape(_pack_epochs, _unpack_epochs)]
ClockForm: TypeAlias = Annotated[tuple[Number, Number], Shape(tuple, lambda value: Clock(*value))]
TimingForm: TypeAlias = Annotated[tuple[Number, Number], Shape(tuple, lambda value: Timing(*value))]
KeysForm: TypeAlias = Annotated[list[MaybeName], Shape(list, tuple)]
NamesForm: TypeAlias = Annotated[list[Name], Shape(list, tuple)]
SitesForm: TypeAlias = Annotated[list[Name], Meta(max_length=MAX_SITES), Shape(list, tuple)]
FilesForm: TypeAlias = Annotated[list[tuple[Name, _FileHash]], Meta(max_length=MAX_FILES), Shape(list, tuple)]
PeersForm: TypeAlias = Annotated[dict[Name, Name], Shape(lambda peers: dict(sorted(peers.items())), dict)]
