"""Version vectors: per origin, up to which number something is known. Never changed in place."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from cheops.log.operation import OpId, Origin

Vector = Mapping[Origin, int]
NOTHING: Vector = MappingProxyType({})


def covers(one: Vector, other: Vector) -> bool:
    """Whether everything in the other is in the one."""
    return all(one.get(origin, 0) >= number for origin, number in other.items())


def contains(vector: Vector, id_: OpId) -> bool:
    return vector.get(id_.origin, 0) >= id_.seq


def joined(one: Vector, other: Vector) -> dict[Origin, int]:
    """What is in either."""
    result = dict(one)
    for origin, number in other.items():
        if number > result.get(origin, 0):
            result[origin] = number
    return result


def common(vectors: Iterable[Vector]) -> dict[Origin, int]:
    """What is in all of them."""
    first, *rest = vectors
    result = {
        origin: min([number, *(other.get(origin, 0) for other in rest)]) for origin, number in first.items()
    }
    return {origin: number for origin, number in result.items() if number}
