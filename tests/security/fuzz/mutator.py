"""Inputs that nobody should send, made from valid ones. The same numbers give the same input, everywhere.

Bytes are flipped, cut, repeated, nested and spliced; JSON is also changed as a tree, so that what comes out
is still JSON and gets further in; what comes from a grammar alone would never meet the code behind it.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

MAX_BYTES = 64 * 1024  # of one input: time and memory are bounded for this
_MOST_CHANGES = 6

# Where programs stumble: ends of numbers, encodings, names that mean something elsewhere.
ODD_BYTES = (
    b"", b"\0", b"\n", b"\r\n", b"\r\n\r\n", b"\t", b" ", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\xc0\xaf", "\u202e".encode(), "\u2028".encode(), "e\u0301".encode(), "\U0001f600".encode(),
    "\u00df\u0130".encode(), "\ufeff".encode(), b"\\ud800", b"\\u0000", b"'", b'"', b"\\", b"`", b"$(id)", b"%00", b"%2e%2e%2f",
    b"../../", b"{", b"}", b"[", b"]", b"(", b")", b"<<: *a", b"&a ", b"*a", b"!!python/object:os.system ", b"--", b"-1", b"0",
    b"1e999", b"-0", b"NaN", b"Infinity", b"null", b"true", b"9" * 30, b"9" * 5000, b"0" * 400 + b"1", b"1." + b"0" * 400,
    b"2147483648", b"9007199254740993", b"18446744073709551616", b"-9223372036854775809", b"0x10", b"1_000", b"\x1b[31m",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**64, 10**400, -(10**30), 0.1, 1e308, -0.0, "", " ", "a", "0", "-1",
    "\0", "\n", "\u202e", "\ud800", "e\u0301", "\U0001f600", "..", "/", "__proto__", "_id", "*", "!x", "-", "x" * 2000, [], {},
    [[]], [None], [0] * 50, {"": ""}, {"a": {"a": {"a": {}}}}, "2020-01-01T00:00:00Z", "http://[::1", "//", "%", "%00", [1, "a", None],
)  # fmt: skip
_OPENERS = (b"[", b"{", b"(", b'{"a":', b"[[", b"- ", b'["', b"a: {b: ", b"around(", b"{\r\n")


def mutated(seeds: Sequence[bytes], tokens: Sequence[bytes], draw: random.Random, most_bytes: int = MAX_BYTES) -> bytes:
    """One input. `tokens` are words that mean something to whoever reads it."""
    data = draw.choice(seeds)
    if draw.random() < 0.4 and (tree := _tree(data)) is not _NO_JSON:
        data = _dumped(_changed_tree(tree, draw, draw.randint(1, 4)))
        if draw.random() < 0.7:
            return data[:most_bytes]
    for _ in range(draw.randint(1, _MOST_CHANGES)):
        data = draw.choice(_CHANGES)(data, seeds, tokens, draw)[:most_bytes]
    return data


# -- bytes -------------------------------------------------------------------------------------------------


def _flip(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _set(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def _cut(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:start] + data[end:]


def _end(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    return data[: draw.randint(0, len(data))]


def _repeat(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    times = draw.choice((2, 3, 10, 100, 1_000))
    piece = data[start:end][: max(1, MAX_BYTES // times)]
    return data[:start] + piece * times + data[end:]


def _insert(data: bytes, _seeds: Sequence[bytes], tokens: Sequence[bytes], draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    words = tokens if tokens and draw.random() < 0.5 else ODD_BYTES
    return data[:at] + draw.choice(words) + data[at:]


def _replace(data: bytes, _seeds: Sequence[bytes], tokens: Sequence[bytes], draw: random.Random) -> bytes:
    start, end = _span(data, draw, 8)
    words = tokens if tokens and draw.random() < 0.5 else ODD_BYTES
    return data[:start] + draw.choice(words) + data[end:]


def _splice(data: bytes, seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    other = draw.choice(seeds)
    return data[: draw.randint(0, len(data))] + other[draw.randint(0, len(other)) :]


def _nest(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + draw.choice(_OPENERS) * draw.choice((2, 20, 200, 2_000, 20_000)) + data[at:]


def _grow_number(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    places = [at for at, byte in enumerate(data[:4096]) if 48 <= byte <= 57]
    if not places:
        return data
    at = draw.choice(places)
    return data[:at] + bytes([data[at]]) * draw.choice((2, 19, 40, 5_000)) + data[at:]


def _swap(data: bytes, _seeds: Sequence[bytes], _tokens: Sequence[bytes], draw: random.Random) -> bytes:
    (a, b), (c, d) = sorted((_span(data, draw, 40), _span(data, draw, 40)))
    return data if b > c else data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _span(data: bytes, draw: random.Random, most: int = 1_000) -> tuple[int, int]:
    start = draw.randint(0, len(data))
    return start, min(len(data), start + draw.randint(0, most))


Change = Callable[[bytes, Sequence[bytes], Sequence[bytes], random.Random], bytes]
_CHANGES: tuple[Change, ...] = (
    _flip, _flip, _set, _cut, _end, _repeat, _insert, _insert, _replace, _replace, _splice, _nest, _grow_number, _swap,
)  # fmt: skip


# -- trees of JSON -----------------------------------------------------------------------------------------

_NO_JSON = object()


def _tree(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return _NO_JSON


def _dumped(tree: Any) -> bytes:
    try:
        return json.dumps(tree, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return b"[]"


def _changed_tree(tree: Any, draw: random.Random, times: int) -> Any:
    for _ in range(times):
        tree = _changed_once(tree, draw)
    return tree


def _changed_once(tree: Any, draw: random.Random) -> Any:
    """Go down to some place, and do something to it there."""
    if isinstance(tree, dict) and tree and draw.random() < 0.85:
        return _changed_object(tree, draw.choice(list(tree)), draw)
    if isinstance(tree, list) and tree and draw.random() < 0.85:
        return _changed_list(tree, draw.randrange(len(tree)), draw)
    return _another(tree, draw)


def _changed_object(tree: dict[str, Any], key: str, draw: random.Random) -> dict[str, Any]:
    kind = draw.random()
    if kind < 0.08:
        return {name: value for name, value in tree.items() if name != key}
    if kind < 0.14:
        return {**tree, str(draw.choice(ODD_VALUES)): tree[key]}
    return {**tree, key: _changed_once(tree[key], draw)}


def _changed_list(tree: list[Any], at: int, draw: random.Random) -> list[Any]:
    kind = draw.random()
    if kind < 0.08:
        return tree[:at] + tree[at + 1 :]
    if kind < 0.16:
        return tree[:at] + [tree[at]] * draw.choice((2, 3, 50)) + tree[at:]
    return [*tree[:at], _changed_once(tree[at], draw), *tree[at + 1 :]]


def _another(value: Any, draw: random.Random) -> Any:
    """Something near, or something odd."""
    kind = draw.random()
    if kind < 0.3 and isinstance(value, int) and not isinstance(value, bool):
        return value + draw.choice((-1, 1, 1_000_000))
    if kind < 0.3 and isinstance(value, str) and value:
        at = draw.randrange(len(value))
        return value[:at] + draw.choice(("\0", "/", "é", "..", "\u202e", "x")) + value[at:]
    if kind < 0.4:
        return [value]
    return draw.choice(ODD_VALUES)
