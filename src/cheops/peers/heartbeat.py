"""Heartbeats: the messages by which agents know which sites exist and are up. A probe and its answer have one form.

The head is about the sender: its name, its beat (a counter that only it advances), its coordinate, what it knows of the
receiver, and digests of its catalogue. The rest is gossip: bounded lists of entries, beats, measured pairs, places and
membership records.

Invariants: `decode` returns only what is well formed, within its limits, and named as scope-lang allows; everything
else raises MeshError. Unknown keys are ignored, so that a newer agent may send more. Whether a record or a decision is
true is another question: see proofs.py.
"""

from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from cheops.config.address import AddressError, parse_url
from cheops.errors import CheopsError, Fault
from cheops.log.causality import Clock
from cheops.scope.names import name_problem
from cheops.text import printable, shortened

MAX_BYTES = 256 * 1024
MAX_ENTRY_BYTES = 16 * 1024
BUCKETS = 32  # of the catalogue (membership.py); part of the protocol, since digests are compared one by one
MAX_NUMBER = 2**53  # what every JSON reader keeps exactly
MAX_MS = 100_000.0  # a round trip, and each part of a coordinate
LEAST_HEIGHT_MS = 0.01
BAD_ADDRESS = "unusable address"
SETTLED_ERROR = 0.5  # coordinates that err more are not used for estimates


class MeshError(CheopsError):
    """A peer sent something that is not a heartbeat."""

    fault = Fault.PEER
    status = 400


class Coordinate(msgspec.Struct, frozen=True, array_like=True):
    """Where a site lies in the network, in milliseconds of round trip (see distances.py). `error` is relative: 1 where
    nothing is known yet."""

    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    height: float = LEAST_HEIGHT_MS
    error: float = 1.0

    @property
    def settled(self) -> bool:
        return self.error <= SETTLED_ERROR


Name = Annotated[str, Meta(min_length=1, max_length=128)]
Incarnation = Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,64}\Z")]  # peers choose it, and logs and pages show it
Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_MS)]
WallMs = Annotated[float, Meta(ge=0, le=MAX_NUMBER)]
Url = Annotated[str, Meta(max_length=512)]  # see `check_addresses`
Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}\Z")]
Beat = tuple[Name, Number]
Pair = tuple[Name, Name, Milliseconds, Number]  # from, to, round trip, the beat of `from` when it was measured
SitePosition = tuple[Name, Number, Coordinate]  # a site's coordinate at a beat of it


class SiteRecord(msgspec.Struct, frozen=True, omit_defaults=True, cache_hash=True):
    """A site in the catalogue, as it describes itself. The greater revision counts; it is the wall time of the change.

    `services` are names, each with its address, which is empty if the agent itself serves it. A site that has the key
    of an authority sets `issues` to a digest of the authorities that it trusts. `types` are its resource types, each
    with a fingerprint of its configuration (cheops.config.fingerprint). With security on, `certificate` (DER) is that
    of the site, and `signature` is by the signing key that the certificate names.
    """

    name: Name
    incarnation: Incarnation
    url: Url
    revision: Number = 0
    version: Annotated[str, Meta(pattern=r"^[ -~]{0,64}\Z")] = ""
    services: Annotated[tuple[tuple[Name, Url], ...], Meta(max_length=64)] = ()
    issues: Annotated[str, Meta(max_length=64)] = ""
    types: Annotated[tuple[tuple[Name, Fingerprint], ...], Meta(max_length=256)] = ()
    certificate: Annotated[bytes, Meta(max_length=8_192)] = b""
    signature: Annotated[bytes, Meta(max_length=64)] = b""


class MembershipRecord(msgspec.Struct, frozen=True, array_like=True):
    """The decision that a site is forgotten, or admitted again. The greater stamp, a wall time, counts.

    With security on, it is signed by an authority of the mesh; `authority` tells which.
    """

    name: Name
    stamp_ms: Number
    forgotten: bool
    authority: Annotated[str, Meta(max_length=32)] = ""
    signature: Annotated[bytes, Meta(max_length=128)] = b""


class Watermark(msgspec.Struct, frozen=True, array_like=True):
    """How far a site's store had come, at one moment of one start of its agent: see watermark.py."""

    incarnation: Incarnation
    start: Number  # the number of the start of the agent on this store
    tag: Annotated[str, Meta(max_length=64)]  # a random text, which distinguishes two starts of one number
    n: Number  # the last number in the store's feed
    clock: Clock  # of the engine
    code: Annotated[bytes, Meta(max_length=32)] = b""


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A probe, or the answer to one."""

    sender: Name
    incarnation: Incarnation
    revision: Number
    beat: Number
    sent_ms: WallMs
    received_ms: WallMs | None = None  # in an answer: when the probe came in, by the sender's clock
    seen: tuple[Number, Number] = (0, 0)  # revision and beat of the receiver, as far as the sender knows
    regular: bool = False  # the sender shares resources with the receiver, and will come back
    every: Annotated[int, Meta(ge=1, le=1_000)] = 1  # in an answer: come back after so many periods
    coordinate: Coordinate = Coordinate()
    digests: Annotated[tuple[Number, ...], Meta(max_length=BUCKETS)] = ()
    entries: Annotated[tuple[SiteRecord, ...], Meta(max_length=512)] = ()
    beats: Annotated[tuple[Beat, ...], Meta(max_length=256)] = ()
    pairs: Annotated[tuple[Pair, ...], Meta(max_length=64)] = ()
    places: Annotated[tuple[SitePosition, ...], Meta(max_length=64)] = ()
    members: Annotated[tuple[MembershipRecord, ...], Meta(max_length=64)] = ()
    decisions: Number = 0  # a digest of all membership records that the sender has
    mark: Watermark | None = None  # of the sender's store
    returned: Watermark | None = None  # the last one of the receiver's store that the sender has kept
    mark_seen: Annotated[str, Meta(max_length=64)] = ""  # the tag of the last one that the receiver gave back


class _Refusal(msgspec.Struct, frozen=True):
    """The part of a refused probe's response that is read: the decision about the sender of the probe."""

    member: MembershipRecord | None = None


class SavedMesh(msgspec.Struct, frozen=True):
    """What an agent saves, so that it knows its peers even if it starts while none can be reached."""

    own: SiteRecord | None = None
    entries: tuple[SiteRecord, ...] = ()
    members: tuple[MembershipRecord, ...] = ()


_encoder = msgspec.json.Encoder()
_heartbeats = msgspec.json.Decoder(Heartbeat)
_saved = msgspec.json.Decoder(SavedMesh)


def encode(message: Heartbeat | SavedMesh | SiteRecord) -> bytes:
    """As JSON."""
    return _encoder.encode(message)


def decode(data: bytes) -> Heartbeat:
    """The heartbeat that these bytes are; raises MeshError."""
    if len(data) > MAX_BYTES:
        raise MeshError(f"a heartbeat has at most {MAX_BYTES:,} bytes; this one has {len(data):,}")
    try:
        heartbeat = _heartbeats.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MeshError(f"not a heartbeat: {printable(shortened(str(error), 200))}") from None
    _check_names(heartbeat)
    for coordinate in (heartbeat.coordinate, *(place for _, _, place in heartbeat.places)):
        _check_coordinate(coordinate)
    return heartbeat


def decode_saved(data: bytes) -> SavedMesh:
    """What an agent saved; raises MeshError."""
    try:
        return _saved.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MeshError(f"the saved state of the mesh cannot be read: {shortened(str(error), 200)}") from None


def decode_refusal(data: bytes) -> MembershipRecord | None:
    """The decision in the response to a refused probe; None if there is none."""
    try:
        return msgspec.json.decode(data, type=_Refusal).member
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def check_entry(entry: SiteRecord) -> SiteRecord:
    """Check the own entry as other sites will check it; raises MeshError."""
    try:
        entry = msgspec.convert(msgspec.to_builtins(entry), SiteRecord)
    except msgspec.ValidationError as error:
        raise MeshError(f"other sites would refuse the record of this site: {error}") from None
    size = len(encode(entry))
    if size > MAX_ENTRY_BYTES:
        raise MeshError(f"the services of '{entry.name}' take {size:,} bytes; {MAX_ENTRY_BYTES:,} are possible")
    for name in (entry.name, *(service for service, _ in entry.services)):
        _check_name(name)
    check_addresses(entry)
    return entry


def check_addresses(entry: SiteRecord) -> None:
    """Raise MeshError unless all addresses are as the configuration would have them, in their one spelling.

    Agents connect to them and HAProxy's configuration contains them, so nothing else may ever pass.
    """
    for url in (entry.url, *(address for _, address in entry.services if address)):
        if problem := _address_problem(url):
            raise MeshError(f"an address of '{printable(shortened(entry.name))}' {problem}", reason=BAD_ADDRESS)


@lru_cache(maxsize=8_192)  # a site reads the catalogue that it has saved, and then hears the same records again
def _address_problem(url: str) -> str:
    """Why an address cannot be taken; empty if it can."""
    try:
        return "" if parse_url(url) == url else "is not in its usual spelling"
    except AddressError as error:
        return f"cannot be used: {error}"


def _check_names(heartbeat: Heartbeat) -> None:
    """Names in gossip about others need no check: only those that came with an entry count."""
    _check_name(heartbeat.sender)
    for entry in heartbeat.entries:
        if len(encode(entry)) > MAX_ENTRY_BYTES:
            raise MeshError(f"the entry of '{printable(shortened(entry.name))}' is too large")
        _check_name(entry.name)
        for service, _ in entry.services:
            _check_name(service)
    for member in heartbeat.members:
        _check_name(member.name)


def _check_name(name: str) -> None:
    if problem := name_problem(name):
        raise MeshError(f"'{printable(shortened(name))}' in a heartbeat: {problem}")


def _check_coordinate(place: Coordinate) -> None:
    """Finite and bounded: one bad coordinate would spoil those of all sites that measure against it."""
    inside = all(abs(number) <= MAX_MS for number in (place.x, place.y, place.z))
    if not (inside and 0 <= place.height <= MAX_MS and 0 < place.error <= 1):
        raise MeshError("a coordinate in a heartbeat is out of bounds")
