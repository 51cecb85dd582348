"""A digest of what a site applied: equal where the same operations took effect in the same way."""

import hashlib
import json
from collections.abc import Iterable

from cheops.log.causality import Vector
from cheops.log.operation import OpId


def digest(settled: Vector, matrix_hash: str, failed: Iterable[OpId], unenforced_order: Iterable[OpId]) -> str:
    """The effective list is a function of the operations known, which the vector names; what can differ
    between sites that know the same is what failed, and an order that nothing could enforce."""
    parts = [
        sorted(settled.items()),
        matrix_hash,
        sorted(failed),
        list(unenforced_order),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
