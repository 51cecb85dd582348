"""Signatures of documents: one for many at a time.

Signing takes longer than everything else that is done for an operation. So the documents of one commit are the leaves
of one hash tree, and only its root is signed. A document carries the signature of the root and its path to it: the hash
of the neighbour at each level, on its left or on its right. A single document is the root itself.

    the id of the key (8 bytes), the signature of the root (64), then for each level up a side and a hash (33)

all in base64. Each part fills whole groups of three bytes, so there is no padding, and a signature has exactly one
spelling. Leaves, nodes and roots are hashed or signed with different prefixes, so that none can pass for another. A
receiver checks a root once and remembers it; every further document of the tree costs a few hashes.
"""

from binascii import Error as BinasciiError
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from cheops.bounded import BoundedMap
from cheops.errors import CheopsError, Fault

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


MOST_LEAVES = 64  # of one tree: beyond this a longer path costs more than another signature
MOST_LEVELS = 16  # of a tree of another site
_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"cheops documents 1\x00"
_KEY_ID_BYTES, _SIGNATURE_BYTES, _STEP_BYTES = 8, 64, 33
_HEAD_BYTES = _KEY_ID_BYTES + _SIGNATURE_BYTES
_LEFT, _RIGHT = b"\x00", b"\x01"  # the side of the neighbour
_MOST_ROOTS = 4_096  # remembered
_MOST_NODES = 1_024  # remembered
_MOST_READ = 256  # remembered: each is read where its key is looked up, and where it is checked

Sign = Callable[[Sequence[bytes]], Sequence[str]]


class SignatureError(CheopsError):
    """A document is not signed by its origin, or was altered since."""

    fault = Fault.PEER
    status = 403
    reason = "signature"


class Signature(NamedTuple):
    key_id: str
    root: bytes  # the signature of the root
    path: bytes = b""  # sides and hashes, from the leaf up


def key_id(public_key: bytes) -> str:
    """The id of a key in signatures: the beginning of its SHA-256."""
    return sha256(public_key).hexdigest()[: 2 * _KEY_ID_BYTES]


@lru_cache(maxsize=_MOST_READ)
def read(text: str) -> Signature:
    """The parts of a signature; raises SignatureError if it is malformed."""
    if not text:
        raise SignatureError("it is not signed")
    try:
        data = a2b_base64(text, strict_mode=True)
    except (BinasciiError, ValueError):  # ValueError: not ASCII
        data = b""
    levels, rest = divmod(len(data) - _HEAD_BYTES, _STEP_BYTES)
    if rest or not 0 <= levels <= MOST_LEVELS or 3 * len(text) != 4 * len(data):  # padding, blanks
        raise SignatureError("its signature cannot be read")
    path = data[_HEAD_BYTES:]
    if path[::_STEP_BYTES].translate(None, _LEFT + _RIGHT):  # anything but a side
        raise SignatureError("its signature cannot be read")
    return Signature(data[:_KEY_ID_BYTES].hex(), data[_KEY_ID_BYTES:_HEAD_BYTES], path)


# -- the tree --------------------------------------------------------------------------------------------


def leaf_hash(content: bytes) -> bytes:
    return sha256(_LEAF + content).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()


_known_node = lru_cache(maxsize=_MOST_NODES)(node_hash)  # the documents of a tree share the nodes above them


def root_above(leaf: bytes, path: bytes) -> bytes:
    """The root that a path leads to from the hash of a leaf."""
    for start in range(0, len(path), _STEP_BYTES):
        beside = path[start + 1 : start + _STEP_BYTES]
        leaf = _known_node(leaf, beside) if path[start] else _known_node(beside, leaf)
    return leaf


def tree(leaves: Sequence[bytes]) -> tuple[bytes, list[str]]:
    """The root above the hashes of these leaves, and the path of each as text. A node without a neighbour moves up
    unchanged."""
    levels = [list(leaves)]
    while len(level := levels[-1]) > 1:
        above = [node_hash(left, right) for left, right in zip(level[::2], level[1::2], strict=False)]
        levels.append([*above, level[-1]] if len(level) % 2 else above)
    paths = [""]  # the root has none; then level by level down, so that shared parts are encoded once
    for level in reversed(levels[:-1]):
        paths = [_step(level, place) + paths[place // 2] for place in range(len(level))]
    return levels[-1][0], paths


def _step(level: Sequence[bytes], place: int) -> str:
    if place % 2:
        return _text(_LEFT + level[place - 1])
    return _text(_RIGHT + level[place + 1]) if place + 1 < len(level) else ""


# -- signing and checking --------------------------------------------------------------------------------


class Signer:
    """Signs for one site."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat  # noqa: PLC0415 - slow

        self._key = key
        self.public_key = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.key_id = key_id(self.public_key)

    def sign(self, contents: Sequence[bytes]) -> list[str]:
        """A signature for each; one signing operation per tree."""
        signatures: list[str] = []
        for start in range(0, len(contents), MOST_LEAVES):
            root, paths = tree([leaf_hash(content) for content in contents[start : start + MOST_LEAVES]])
            head = _text(bytes.fromhex(self.key_id) + self._key.sign(_ROOT + root))
            signatures += [head + path for path in paths]
        return signatures


class Verifier:
    """Checks signatures. Remembers the valid roots that were used last, up to a number."""

    def __init__(self, remember: int = _MOST_ROOTS) -> None:
        self._roots: BoundedMap[tuple[bytes, bytes, bytes], None] = BoundedMap(remember)
        self._keys: BoundedMap[bytes, Ed25519PublicKey] = BoundedMap(remember)
        self.checked = 0  # signatures that were verified in full

    def check(self, content: bytes, signature: Signature, public_key: bytes) -> None:
        """Raises SignatureError unless this is what the key's owner signed."""
        root = root_above(leaf_hash(content), signature.path)
        known = (public_key, root, signature.root)
        if known in self._roots:
            self._roots.touch(known)  # a root that is used stays
        else:
            self._check_root(root, signature.root, public_key)
            self._roots[known] = None

    def _check_root(self, root: bytes, signature: bytes, public_key: bytes) -> None:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - slow to import

        self.checked += 1
        try:
            self._key(public_key).verify(signature, _ROOT + root)
        except InvalidSignature:
            raise SignatureError("its signature does not match: it was altered, or another site signed it") from None

    def _key(self, public_key: bytes) -> "Ed25519PublicKey":
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

        if public_key not in self._keys:
            self._keys[public_key] = Ed25519PublicKey.from_public_bytes(public_key)
        return self._keys[public_key]


def _text(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")
