"""Changes of the structure of JSON that mostly keep it well formed, so that they get past the decoders.

A value is replaced by one that stands under the same name in another sample, by a neighbour, or by a bound; members and
items are dropped, doubled, moved and added. What the sender of a message can choose freely is changed most: numbers,
names, vectors, references. One input in eight is changed without regard to any form (`mutator`).
"""

import json
import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from tests.security.fuzz.mutator import MAX_BYTES, mutated

_MOST_CHANGES = 4
_NUMBERS = (
    *(-1, 0, 1, 2, 3, 7, 64, 65, 2**31 - 1, 2**31, 2**53 - 2, 2**53 - 1, 2**53, 2**63 - 1),
    *(1_700_000_000_000, 1_700_000_099_999, 1_700_000_100_000, 1_700_000_160_000, 1_700_000_160_001),
    *(253_402_300_799_999, 253_402_300_800_000),
)
_WORDS = (
    *(
        "",
        " ",
        ".",
        "..",
        "../../x",
        "a/../b",
        "/etc/x",
        "-rf",
        "--",
        "~",
        "a\u001b[2J",
        "\u202ex",
        "\u009b",
        "x\ny",
        "\ud800",
    ),
    *(
        "*",
        "!seal",
        "!sites",
        "set",
        "inc",
        "lyon",
        "paris",
        "here",
        "counter",
        "honest",
        "fresh",
        "op/counter/lyon/91c0/1",
    ),
    *("lyon/91c0", "paris/3f2a", "here/1", "nobody/0", "lyon/", "/1", "lyon/91c0/2", "x" * 128, "x" * 129, "0" * 64),
    *(
        "OK",
        "KO",
        "VOID",
        "normal",
        "sites",
        "delete",
        "force",
        "seal",
        "matrix",
        "https://127.0.0.1 x:1",
        "https://h:99999",
    ),
)


def restructured(
    seeds: Sequence[bytes], tokens: Sequence[bytes], draw: random.Random, most_bytes: int = MAX_BYTES
) -> bytes:
    """One input. Of a seed of several lines, each a JSON value, one or more are changed."""
    if draw.random() < 1 / 8:
        return mutated(seeds, tokens, draw, most_bytes)
    lines = draw.choice(seeds).split(b"\n")
    pool = _pool(tuple(seeds))
    for _ in range(draw.randint(1, _MOST_CHANGES)):
        at = draw.randrange(len(lines))
        tree = json.loads(lines[at])
        change = _changed_number if draw.random() < 0.3 else _changed
        lines[at] = _dumped(change(tree, "", pool, draw))
    return b"\n".join(lines)[:most_bytes]


Pool = dict[str, list[Any]]


@lru_cache(64)
def _pool(seeds: tuple[bytes, ...]) -> Pool:
    """All values of all seeds, by the name under which each stands."""
    pool: Pool = {}
    for seed in seeds:
        for line in seed.split(b"\n"):
            for name, value in _values(json.loads(line), ""):
                pool.setdefault(name, []).append(value)
    return pool


def _values(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, tree
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _values(value, key)
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _values(value, f"{name}[{number if len(tree) < 5 else ''}]")


def _dumped(tree: Any) -> bytes:
    try:
        return json.dumps(tree, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return b"{}"


def _changed(tree: Any, name: str, pool: Pool, draw: random.Random) -> Any:
    """Go down to some place, and change what is there."""
    if isinstance(tree, dict) and tree and draw.random() < 0.85:
        key = draw.choice(list(tree))
        return {**tree, key: _changed(tree[key], key, pool, draw)}
    if isinstance(tree, list) and tree and draw.random() < 0.8:
        at = draw.randrange(len(tree))
        below = f"{name}[{at if len(tree) < 5 else ''}]"
        return [*tree[:at], _changed(tree[at], below, pool, draw), *tree[at + 1 :]]
    if draw.random() < 0.3:
        return draw.choice(pool.get(name) or [tree])
    return _another(tree, pool.get(name, ()), pool, draw)


def _changed_number(tree: Any, _name: str, pool: Pool, draw: random.Random) -> Any:
    """Each number is as likely as another, however deep it stands: counters, stamps, sequence numbers."""
    places = list(_numbers_in(tree))
    if not places:
        return _changed(tree, "", pool, draw)
    *way, last = draw.choice(places)
    above = tree
    for step in way:
        above = above[step]
    above[last] = _number(above[last], draw)
    return tree


def _numbers_in(tree: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(tree, dict | list):
        for step, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _numbers_in(value, (*way, step))
    elif way and isinstance(tree, int | float) and not isinstance(tree, bool):
        yield way


def _another(value: Any, others: Sequence[Any], pool: Pool, draw: random.Random) -> Any:
    match value:
        case bool() | None:
            return draw.choice((True, False, None))
        case int() | float():
            return _number(value, draw)
        case str():
            return _text(value, others, draw)
        case list():
            return _items(value, others, draw)
        case _:
            return _members(value, others, pool, draw)


def _number(value: float, draw: random.Random) -> float:
    if draw.random() < 0.5:
        return value + draw.choice((-2, -1, 1, 2, 60_000, 60_001, 86_400_000))
    return draw.choice(_NUMBERS)


def _text(value: str, others: Sequence[Any], draw: random.Random) -> Any:
    kind = draw.random()
    if kind < 0.4 and others:
        return draw.choice(others)
    if kind < 0.8 or not value:
        return draw.choice(_WORDS)
    at = draw.randrange(len(value))
    return (
        value[:at]
        + draw.choice(("", "x", "/", "..", "\u0000", "\u001b", "\u202e", "A"))
        + value[at + draw.randint(0, 1) :]
    )


def _items(value: list[Any], others: Sequence[Any], draw: random.Random) -> list[Any]:
    kind = draw.randrange(5)
    if kind == 0 and value:
        at = draw.randrange(len(value))
        return [*value[:at], *value[at + 1 :]]
    if kind == 1 and value:
        return value + [draw.choice(value)] * draw.choice((1, 2, 40))
    if kind == 2:
        return draw.sample(value, len(value))
    if kind == 3:
        return [*value, *draw.choice([one for one in others if isinstance(one, list)] or [[]])]
    return []


def _members(value: dict[str, Any], others: Sequence[Any], pool: Pool, draw: random.Random) -> dict[str, Any]:
    kind = draw.randrange(4)
    if kind == 0 and value:
        gone = draw.choice(list(value))
        return {key: one for key, one in value.items() if key != gone}
    if kind == 1:
        return value | draw.choice([one for one in others if isinstance(one, dict)] or [{}])
    if kind == 2:
        key = draw.choice(list(pool))
        return {**value, key: draw.choice(pool[key])} if "[" not in key else value
    return {**value, draw.choice(_WORDS): draw.choice(_NUMBERS)}  # a vector: one more origin
