"""Targets: heartbeats of a hostile site, as structured changes of real ones, into a mesh with real certificates.

Certificates and their signatures differ each time they are made, and inputs must not: a sample names them (`CERT-lyon`),
and the target puts the real ones in. The hostile site signs all records anew that bear its certificate. What others
signed is genuine as long as it is as they wrote it.
"""

import atexit
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from cheops.config.security import SecurityConfig
from cheops.peers import heartbeat
from cheops.peers.heartbeat import Coordinate, Heartbeat, MembershipRecord, MeshError, SiteRecord
from cheops.peers.mesh import Mesh
from cheops.peers.proofs import CertificateProofs, record_content, sign_decision
from cheops.peers.settings import MeshSettings, Now
from cheops.security.certificates import make_authority
from cheops.security.keyring import Keyring
from cheops.security.refusals import Refusals
from tests.security.fuzz.receiver import HarmError
from tests.security.fuzz.structure import restructured
from tests.security.fuzz.targets import JSON_TOKENS, Target
from tests.security.pki import Pki

_WALL_MS = 1_700_000_100_000
_NOW = Now(1_000.0, float(_WALL_MS))
_SITES = ("here", "paris", "lyon")
_PLACEHOLDERS = {name: f"CERT-{name}".encode() for name in _SITES}
_OLD = MembershipRecord("gone", _WALL_MS - 50_000, forgotten=True)  # what the authority really decided


def _record(name: str, revision: int = _WALL_MS - 20_000, **changes: object) -> SiteRecord:
    services = (("image", f"https://{name}.example:9000"),)
    record = SiteRecord(name, "1", f"https://{name}.example:8079", revision, "1.0", services)
    return replace(record, certificate=_PLACEHOLDERS.get(name, b""), signature=b"SIG", **changes)


def _heartbeat(**content: object) -> bytes:
    return heartbeat.encode(Heartbeat("lyon", "1", _WALL_MS - 20_000, _WALL_MS, float(_WALL_MS), **content))  # type: ignore[arg-type]


HEARTBEATS = (
    _heartbeat(),
    _heartbeat(entries=(_record("lyon"), _record("paris")), beats=(("paris", _WALL_MS),), regular=True),
    _heartbeat(entries=(_record("paris", _WALL_MS, url="https://lyon.example:1"), _record("new"))),
    _heartbeat(entries=(_record("lyon", _WALL_MS + 1, issues="x"),), digests=(1, 2, 3), seen=(_WALL_MS, _WALL_MS + 5)),
    _heartbeat(members=(replace(_OLD, authority="AUTH", signature=b"SIG"),), decisions=7),
    _heartbeat(members=(MembershipRecord("paris", _WALL_MS, forgotten=True, authority="AUTH", signature=b"SIG"),)),
    _heartbeat(members=(MembershipRecord("here", 2**53 - 1, forgotten=True),), received_ms=float(_WALL_MS)),
    _heartbeat(
        pairs=(("lyon", "paris", 3.5, _WALL_MS), ("paris", "here", 0.1, _WALL_MS)),
        places=(("paris", _WALL_MS, Coordinate(1.0, 2.0, 3.0, 0.5, 0.2)),),
        coordinate=Coordinate(5.0, 1.0, 0.0, 1.0, 0.3),
        every=3,
    ),
)


@dataclass(frozen=True)
class _World:
    """Three sites with keys, of which `here` has that of the authority."""

    keyrings: dict[str, Keyring]
    records: dict[str, SiteRecord]  # genuine, with their signatures
    decision: MembershipRecord
    proofs: CertificateProofs


@cache
def _world() -> _World:
    pki, base = Pki(make_authority(_WALL_MS / 1000 - 10 * 86_400)), Path(tempfile.mkdtemp(prefix="cheops-fuzz-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    keyrings = {}
    for name in _SITES:
        pki.site(base / name, name, made_s=_WALL_MS / 1000 - 86_400)
        ca_key = pki.write(base / "ca") if name == "here" else None
        keyrings[name] = Keyring(SecurityConfig(folder=base / name, ca_key=ca_key), name, Refusals())
    records = {name: CertificateProofs(keyrings[name]).sign_record(_record(name)) for name in _SITES}
    decision = sign_decision(_OLD, pki.authority)
    return _World(keyrings, records, decision, CertificateProofs(keyrings["here"]))


def _with_proofs(record: SiteRecord) -> SiteRecord:
    world = _world()
    name = record.certificate.removeprefix(b"CERT-").decode("ascii", "replace")
    if name not in world.records:
        return record
    folder = world.keyrings[name].folder
    proved = replace(record, certificate=folder.identity.der)
    if name == "lyon":
        return replace(proved, signature=folder.signing_key.sign(record_content(proved)))
    return replace(proved, signature=world.records[name].signature)  # genuine if nothing else was changed


def _decided(decision: MembershipRecord) -> MembershipRecord:
    """With the signature of the real decision; the id of the authority is no secret."""
    if decision.authority != "AUTH":
        return decision
    return replace(decision, authority=_world().decision.authority, signature=_world().decision.signature)


def _receive(data: bytes) -> None:
    sent = heartbeat.decode(data)
    world = _world()
    mesh = Mesh(world.records["here"], {}, _NOW, proofs=world.proofs)
    for honest in ("paris", "lyon"):
        hello = Heartbeat(honest, "1", 1, _WALL_MS - 1_000, float(_WALL_MS), entries=(world.records[honest],))
        mesh.received_probe(hello, _NOW)
    # The endpoint has compared the sender with its certificate.
    entries, members = map(_with_proofs, sent.entries), map(_decided, sent.members)
    sent = replace(sent, sender="lyon", entries=tuple(entries), members=tuple(members))
    answer, _ = mesh.received_probe(heartbeat.decode(heartbeat.encode(sent)), _NOW)
    heartbeat.decode(heartbeat.encode(answer))
    _check(mesh)


def _check(mesh: Mesh) -> None:
    world, latest_ms = _world(), MeshSettings().latest_ms(_WALL_MS) + 1
    if wrong := mesh.forgotten - {"gone"}:
        raise HarmError(f"nobody decided to forget {wrong}")
    if mesh.entry_of("paris") != world.records["paris"]:
        raise HarmError(f"the record of paris is now {mesh.entry_of('paris')}")
    if invented := set(mesh.known_sites) - set(_SITES):
        raise HarmError(f"sites without a certificate are known: {invented}")
    if (own := mesh.own).revision > latest_ms or own.url != world.records["here"].url:
        raise HarmError(f"the own record is now {own}")
    if (lyon := mesh.entry_of("lyon")) and lyon.revision > latest_ms:
        raise HarmError(f"a record from the future was taken: {lyon}")
    mesh.snapshot(_NOW)
    heartbeat.decode_saved(heartbeat.encode(mesh.saved()))
    probes, _ = mesh.tick(Now(2_000.0, _WALL_MS + 1_000.0), lambda most: most // 2)
    for probe in probes:
        if probe.payload.beat > latest_ms + 1_000:
            raise HarmError(f"the beat of this site was moved to {probe.payload.beat}")
        heartbeat.decode(heartbeat.encode(probe.payload))
    mesh.forget("lyon", _NOW)
    if not mesh.is_site_forgotten("lyon"):
        raise HarmError("the hostile site cannot be forgotten")


_TOKENS = (
    *JSON_TOKENS,
    b'"paris"',
    b'"lyon"',
    b'"here"',
    b'"https://127.0.0.1 x:1"',
    b"9007199254740991",
    b"1700000160001",
)
GOSSIP: dict[str, Target] = {
    "peer-heartbeat": Target(_receive, HEARTBEATS, (MeshError,), _TOKENS, 60, make=restructured),
}
