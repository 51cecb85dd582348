"""Operations, their verdicts, and the replies of sites: the immutable documents that sites exchange.

An operation starts as a *draft*, which only its origin knows and runs first. The outcome gives it its *verdict*, and
from then on the operation, verdict included, is immutable and goes to the other sites. So no other site ever holds an
operation whose outcome at its origin is open. (An operation of a type with `parallel` gets its verdict, OK, before it
runs anywhere.)

Where the mesh has identities, the origin signs an operation with its verdict, and a reply, just before it stores
them for the first time. Nothing in the core reads a signature.

The classes are msgspec types: what is declared here is also the JSON form in the store and between sites, and the
limits in the annotations are checked when a document is decoded (see cheops.store.codec). They are not checked when
the core makes a document: the codec checks again what it encodes.

A resource may have very many of them in memory. `gc=False` makes each smaller, and the collector pass them by: they
refer to nothing that could refer back.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Annotated, Literal, NamedTuple, Self, TypeAlias

from msgspec import Meta, Struct, field
from msgspec.json import Encoder
from msgspec.structs import astuple, force_setattr, replace

from cheops.text import is_invisible

MAX_NAME_CHARACTERS = 1_000  # of a resource, a site, an incarnation, a key …
MAX_SITES = 10_000
MAX_FILES = 100  # of one operation
MAX_SIGNATURE_CHARACTERS = 2_000
MAX_NUMBER = 2**53 - 1  # every JSON reader reads these exactly
# Far more than any site can make, and far below MAX_NUMBER: whatever number a site hears of, the next one still fits.
MAX_COUNT = 2**40  # of operations or replies of one origin
MAX_COUNTER = 2**20  # of a stamp; the clock carries into its time, see causality.py
MAX_ORIGINS = 4_096  # in one vector
OUTPUT_HASH_BYTES = 12

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
OptionalName: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]  # may be empty
# Printable ASCII without blanks and slashes. Each is a part of an origin, and others must be able to read that one.
Incarnation: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS, pattern=r"^[!-.0-~]+\Z")]
FileHash: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
OutputHash: TypeAlias = Annotated[str, Meta(pattern=r"^([0-9a-f]{24})?\Z")]  # may be empty, see `hash_of_output`
# Only characters that JSON does not escape: the codec cuts the signature off the encoded bytes.
Signature: TypeAlias = Annotated[str, Meta(max_length=MAX_SIGNATURE_CHARACTERS, pattern=r"^[A-Za-z0-9+/]*\Z")]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Ordinal: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Counter: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNTER)]


class Origin(str):
    """A site and the incarnation of its store: a site that restarts with an empty disk is a new origin.

    So is a site that has dropped what it knew of a resource (see cheops.engine.tombstones): it numbers its operations
    from 1 again. Then the incarnation is `store.generation`.

    A string, `site/incarnation`, so that a vector is a JSON object without conversion. Strings are also Python's
    fastest dictionary keys: the hash is computed once. The incarnation has no slash, so the last one separates.
    """

    __slots__ = ("incarnation", "site", "store")
    site: str
    incarnation: str
    store: str  # the incarnation of the store, without the generation

    def __new__(cls, site: str, incarnation: str) -> Self:
        if "/" in incarnation:
            raise ValueError(f"an incarnation has no slash: '{incarnation}'")
        self = super().__new__(cls, f"{site}/{incarnation}")
        self.site, self.incarnation, self.store = site, incarnation, store_of(incarnation)
        return self

    @property
    def generation(self) -> int:
        """How often the store had dropped resources when this site began this one; 0 for what is not a number."""
        number = self.incarnation.partition(".")[2]
        return int(number) if number.isdecimal() and number.isascii() else 0

    def shares_store(self, other: "Origin") -> bool:
        """Whether both are the same store of the same site, in whatever generation."""
        return self == other or (self.site == other.site and self.store == other.store)

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # as our constructor takes them
        return (self.site, self.incarnation)

    def __repr__(self) -> str:
        return f"Origin({self.site!r}, {self.incarnation!r})"


@lru_cache(maxsize=4_096)  # each step asks for that of each site
def origin_named(site: str, incarnation: str) -> Origin:
    return Origin(site, incarnation)


def store_of(incarnation: str) -> str:
    """The incarnation of a store, of one that may name a generation too."""
    return incarnation.partition(".")[0]


@lru_cache(maxsize=4_096)  # very many documents share few origins: one object for each is enough
def parse_origin(text: str) -> Origin:
    """The origin in a text; raises ValueError."""
    site, slash, incarnation = text.rpartition("/")
    if not (slash and 0 < len(site) <= MAX_NAME_CHARACTERS and 0 < len(incarnation) <= MAX_NAME_CHARACTERS):
        raise ValueError("an origin is 'site/incarnation', each of 1 to 1,000 characters")
    if any(map(is_invisible, text)):
        raise ValueError("an origin has no control characters or other invisible ones")
    return Origin(site, incarnation)


# Per origin, the number up to which something is known. Never changed in place.
Vector: TypeAlias = Annotated[Mapping[Origin, Count], Meta(max_length=MAX_ORIGINS)]


class Stamp(NamedTuple):
    """A time of the hybrid logical clock. Totally ordered, and later than everything it depends on."""

    time_ms: Number
    counter: Counter
    origin: Origin


class OpId(NamedTuple):
    """The name of an operation within its resource."""

    origin: Origin
    seq: Ordinal

    def __str__(self) -> str:
        return f"{self.origin.site}:{self.seq}"


class Kind(StrEnum):
    """What an operation does, apart from its type, which the user chooses."""

    NORMAL = "normal"
    FORCE = "force"  # the operator decides: becomes the new base
    DELETE = "delete"  # beats everything
    SITES = "sites"  # changes the list of sites, touches no application
    SEAL = "seal"  # only says what is settled for good, touches no application


# The keys of operations of a special kind, whatever their type.
RESERVED_KEYS = {
    Kind.FORCE: "!force",
    Kind.DELETE: "!delete",
    Kind.SITES: "!sites",
    Kind.SEAL: "!seal",
}
# Kinds that touch no application: nothing is run for them.
SILENT_KINDS = frozenset((Kind.SITES, Kind.SEAL))
SILENT_KEYS = frozenset(RESERVED_KEYS[kind] for kind in SILENT_KINDS)


class Verdict(StrEnum):
    """What became of an operation at its origin."""

    OK = "OK"
    VOID = "VOID"  # definitely failed there: no effect anywhere
    SUPERSEDED = "SUPERSEDED"  # beaten before it could run: no effect anywhere


class Status(StrEnum):
    """What became of an operation at one site."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    OK = "OK"
    KO = "KO"
    SUPERSEDED = "SUPERSEDED"
    VOID = "VOID"
    UNKNOWN = "UNKNOWN"


class MatrixRef(NamedTuple):
    """The matrix that applied when an operation was submitted: its hash, and the stamp of its introducer."""

    hash: Name
    introduced: Stamp


class FileRef(NamedTuple):
    """A file that came with an operation. Its size is part of what the origin signs: a site knows how much room a file
    takes before it fetches the first byte."""

    name: Name
    hash: FileHash
    size: Number  # in bytes


class Command(Struct, frozen=True, omit_defaults=True, gc=False):
    """A payload: a command line, and the files that came with it."""

    line: str
    files: Annotated[tuple[FileRef, ...], Meta(max_length=MAX_FILES)] = ()


# Of the format of a document; 1 is not written. It grows only when an older agent would misunderstand a document.
# Unknown fields are ignored, so a new field with a default is no new version.
Version: TypeAlias = Literal[1]


class DocumentBase(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="doc", gc=False):
    """What every document has: `doc` names its kind, `v` the version of its format."""

    v: Version = 1


class Statement(DocumentBase, frozen=True, tag="statement"):
    """What a site signs for a seal: the resource is at these sites with these stores, this site has settled everything
    up to that vector, and `made` is the number of its last operation. So each later operation of this origin depends on
    all of it."""

    resource: Name
    origin: Origin
    seal: FileHash  # what the seal says, see `seal_hash`; the seal itself has it once for all statements
    made: Count
    signature: Signature = ""  # of its origin, over all the rest; the last that is written, see codec.unsigned


class Seal(NamedTuple):
    """What is settled for good: every site involved has applied all up to `stable`.

    Only what is under a seal that all sites know may be forgotten, see seals.py. `root` is the stamp of the resource's
    first operation, as far as was known when it was first sealed. It distinguishes two resources that two sites created
    under one name without knowing of each other. `origins` are the sites involved, each with the store that speaks for
    it, the author of the seal included, in their order. Each of the others has signed a statement; the author signs the
    operation that carries the seal. An earlier store of one of these sites has not signed, and cannot.
    """

    stable: Vector
    root: Stamp
    origins: Annotated[tuple[Origin, ...], Meta(max_length=MAX_SITES)]
    statements: Annotated[tuple[Statement, ...], Meta(max_length=MAX_SITES)] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(origin.site for origin in self.origins)


class _Derived:
    """Of an operation, and needed all the time: its name, its key in the matrix, and the hash of its content.

    Slots of a base class, because msgspec would encode fields, and a `__dict__` would slow down every method call.
    """

    __slots__ = ("content", "id", "key")
    id: OpId
    key: str
    content: int  # see `content_hash`; set when it is first needed


class Operation(_Derived, Struct, frozen=True, omit_defaults=True, tag_field="doc", tag="op", gc=False):
    """One modifying request on one resource. Two are equal when their ids are. A correct site gives an id once; where
    two contents have one id, `precedence` decides (see History.replace)."""

    resource: Name
    rtype: OptionalName  # the resource's type, by which a site finds reset, checkpoint, on_error …
    type: OptionalName
    kind: Kind
    payload: Command
    origin: Origin
    seq: Ordinal
    deps: Vector
    stamp: Stamp
    matrix: MatrixRef
    sites: Annotated[tuple[Name, ...], Meta(max_length=MAX_SITES)] | None = None  # the new list, if it sets one
    parallel: bool = False
    verdict: Verdict | None = None  # None: a draft
    why: str = ""  # with a verdict other than OK: what failed, or what superseded it
    seal: Seal | None = None
    signature: Signature = ""  # of its origin, over all the rest; the last that is written, see codec.unsigned
    v: Version = 1  # two bases with slots are impossible, so this is no DocumentBase

    def __post_init__(self) -> None:
        force_setattr(self, "id", OpId(self.origin, self.seq))
        force_setattr(self, "key", RESERVED_KEYS.get(self.kind, self.type))

    def __copy__(self) -> "Operation":
        return self  # msgspec would copy the fields alone

    def decided(self, verdict: Verdict, why: str) -> "Operation":
        """The operation that a draft becomes. Field by field: this is measurably faster than `structs.replace`."""
        return Operation(
            self.resource,
            self.rtype,
            self.type,
            self.kind,
            self.payload,
            self.origin,
            self.seq,
            self.deps,
            self.stamp,
            self.matrix,
            self.sites,
            self.parallel,
            verdict,
            why,
            self.seal,
        )

    @property
    def is_silent(self) -> bool:
        """Whether it does not touch the application."""
        return self.kind in SILENT_KINDS

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Operation) and self.id == other.id and self.resource == other.resource
        )

    def __hash__(self) -> int:
        return hash(self.id)

    def is_before(self, other: "Operation") -> bool:
        """Whether the origin of the other knew this one."""
        return other.deps.get(self.origin, 0) >= self.seq

    def is_concurrent(self, other: "Operation") -> bool:
        return self != other and not self.is_before(other) and not other.is_before(self)


def encode_value(value: object) -> object:
    """How JSON has the types that msgspec does not know."""
    if isinstance(value, Origin):
        return str(value)
    if isinstance(value, Mapping):  # a read-only view of a dictionary
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


# Deterministic: dictionaries and sets are sorted, so equal documents have equal bytes at every site.
_encoder = Encoder(enc_hook=encode_value, order="deterministic")
_CONTENT_BYTES = 16
CONTENT_MASK = 2 ** (8 * _CONTENT_BYTES) - 1


def content_hash(op: Operation) -> int:
    """A number that stands for everything in an operation except its signature: the same at every site."""
    try:
        return op.content
    except AttributeError:
        content_of(op)
        return op.content


def content_of(op: Operation) -> bytes:
    """The bytes of an operation without its signature. Their hash is kept with it: to encode it again would cost more
    than the hash."""
    body = unsigned(_encoder.encode(op), op.signature)
    force_setattr(op, "content", int.from_bytes(sha256(body).digest()[:_CONTENT_BYTES]))
    return body


def precedence(op: Operation) -> tuple[Stamp, int]:
    """Of two contents under one id, the one with the smaller value stands. The earlier stamp first: whichever of them
    the author of a later operation knew, that operation's stamp is later than that of the one that stands."""
    return op.stamp, content_hash(op)


def seal_hash(stable: Vector, origins: Collection[Origin], root: Stamp) -> str:
    """A text that stands for what a seal says: the same at every site."""
    return sha256(_encoder.encode((dict(stable), sorted(origins), root))).hexdigest()


def unsigned(body: bytes, signature: str) -> bytes:
    """The bytes of a document without its signature, which is the last member and has only plain characters. The
    thread that commits may have signed it just after it was encoded: then the bytes have no signature."""
    member = signature_member(signature)
    return body.removesuffix(member) + b"}" if body.endswith(member) else body


def signature_member(signature: str) -> bytes:
    return b',"signature":"%b"}' % signature.encode("ascii")


class Timing(Struct, frozen=True, array_like=True, gc=False):
    """When a run began, by the clock of its site, and how long it took."""

    at_ms: Number = 0
    took_ms: Number = 0


NO_TIME = Timing()


class Applied(Struct, frozen=True, array_like=True, gc=False):
    """An operation that a site has run. It outlives the operation itself, which the history may forget."""

    id: OpId
    key: OptionalName


class Reply(DocumentBase, frozen=True, tag="reply"):
    """The outcome of one run at one site: number `n` of that origin for this resource.

    A replay has one reply, without an operation. It lists everything that is applied at the site after it. So the
    reply of an earlier replay adds nothing, and is dropped.
    """

    resource: Name
    origin: Origin
    n: Ordinal
    op: OpId | None
    key: OptionalName  # the operation's key
    status: Status
    wiped: tuple[OptionalName, ...] = ()  # the keys of the operations whose effect this run wiped
    replay: bool = False
    detail: str = ""
    output: str = ""
    # A factory, because msgspec omits a plain default by identity: equal replies must give equal bytes.
    timing: Timing = field(default_factory=Timing)
    applied: tuple[Applied, ...] = ()  # of a replay
    # Of an output that other sites fetch when somebody looks at it: the signature covers this, and not the output.
    output_hash: OutputHash = ""
    signature: Signature = ""  # of its origin, over all the rest; the last that is written, see codec.unsigned

    @property
    def is_cut(self) -> bool:
        """Whether there was an output, which is not here."""
        return bool(self.output_hash) and not self.output

    def without_output(self) -> "Reply":
        """As others get it who have not asked for the output."""
        return replace(self, output="") if self.output_hash and self.output else self

    def __eq__(self, other: object) -> bool:
        # A signature comes later, and is no part of what a reply says; the hash of an output says as much as that.
        if not isinstance(other, Reply):
            return False
        one, another = self.without_output(), other.without_output()
        return astuple(one)[:_SIGNATURE] == astuple(another)[:_SIGNATURE]

    def __hash__(self) -> int:
        return hash((self.resource, self.origin, self.n))


def hash_of_output(output: str) -> str:
    """What stands for an output where that is not sent along; empty for a short one, which always is."""
    if len(output) <= 2 * OUTPUT_HASH_BYTES:
        return ""
    return sha256(output.encode()).hexdigest()[: 2 * OUTPUT_HASH_BYTES]


_SIGNATURE = Reply.__struct_fields__.index("signature")
