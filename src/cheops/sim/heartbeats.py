"""The meshes of all sites in a world with a hostile one: production code, and heartbeats as bytes.

The hostile site's heartbeats are mutated: addresses of others, sites that do not exist, decisions about membership that
nobody made, counters at their bounds. It also refuses probes with decisions that it made up. All the same, honest sites
must know each other at the right addresses, and a decision to forget the hostile site must reach them all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from random import Random
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from cheops.errors import CheopsError
from cheops.peers import heartbeat
from cheops.peers.heartbeat import MembershipRecord, SavedMesh, SiteRecord
from cheops.peers.mesh import Mesh
from cheops.peers.probes import Probe
from cheops.peers.proofs import FORGED_DECISION, FORGED_RECORD, RecordError, decision_content, record_content
from cheops.peers.settings import MeshSettings, Now
from cheops.sim.wire import CLOCK_SKEW_S
from cheops.sim.workload import Profile

TACTICS = ("addresses", "invented sites", "invented decisions", "many decisions", "counters", "refuse probes", "bytes")
# Fewer decisions are kept than an agent keeps, so that a history of seconds can have too many.
SETTINGS = MeshSettings(period_ms=1_000, max_members=64, max_sites=64, clock_skew_ms=CLOCK_SKEW_S * 1_000)
_MAX_NUMBER = 2**53
_BAD_ADDRESSES = (
    "https://evil.example:1",
    "https://127.0.0.1 redir :28302",
    "https://site1.example:99999",
    "https://site1.example:8079/../x",
    "https://u:p@evil.example:1",
    "http://[::1",
)

Tree = dict[str, Any]
_AUTHORITY = "authority"  # signs decisions about sites


class Keys:
    """What proves records in the simulator (see cheops.peers.proofs): keyed hashes in the place of signatures.

    A certificate is the name of its site in other words; anybody can read it, and only its site has the key.
    """

    def __init__(self, site: str, sites: tuple[str, ...], *, may_decide: bool) -> None:
        self._site = site
        self._certificates = {_certificate(one): one for one in sites}
        self.may_decide = may_decide

    def sign_record(self, record: SiteRecord) -> SiteRecord:
        record = replace(record, certificate=_certificate(self._site), signature=b"")
        return replace(record, signature=_signature(self._site, record_content(record)))

    def made_ms(self, record: SiteRecord) -> int | None:
        signer = self._certificates.get(record.certificate)
        if signer != record.name or record.signature != _signature(signer, record_content(record)):
            raise RecordError(FORGED_RECORD, f"the record of '{record.name}' is forged")
        return 0

    def sign_decision(self, decision: MembershipRecord) -> MembershipRecord:
        signature = _signature(_AUTHORITY, decision_content(decision))
        return replace(decision, authority=_AUTHORITY, signature=signature)

    def check_decision(self, decision: MembershipRecord) -> None:
        if decision.signature != _signature(_AUTHORITY, decision_content(decision)):
            raise RecordError(FORGED_DECISION, f"the decision about '{decision.name}' is forged")


def _certificate(site: str) -> bytes:
    return f"certificate of {site}".encode()


def _signature(key: str, content: bytes) -> bytes:
    return blake2b(content, key=key.encode(), digest_size=32).digest()


def address(site: str) -> str:
    return f"https://{site}.example:8079"


def _is_address(url: str) -> bool:
    return url == _BAD_ADDRESSES[0]  # the only one of them that is well formed


class HeartbeatMutator:
    """What the hostile site makes of its heartbeats."""

    def __init__(self, keys: Keys, others: tuple[str, ...], random: Random, profile: Profile) -> None:
        """`keys` are those of the hostile site."""
        self._keys = keys
        self._others = others
        self._random = random
        self.tactics = profile.chosen_tactics(random.sample(TACTICS, random.randint(1, 3)), TACTICS)
        self.injected: Counter[str] = Counter()

    def mutate(self, body: bytes, now_ms: int) -> bytes:
        """A heartbeat of this site, changed."""
        if not self.tactics or self._random.random() < 0.3:
            return body
        tactic = self._random.choice(self.tactics)
        self.injected[f"hostile: {tactic}"] += 1
        tree: Tree = msgspec.json.decode(body)
        match tactic:
            case "addresses":
                tree["entries"] = [*self._entries(tree, now_ms), *tree.get("entries", ())][:60]
            case "invented sites":
                names = [f"ghost{self._random.randint(0, 200)}" for _ in range(10)]
                tree["entries"] = [self._entry(name, now_ms) for name in names]
                tree["beats"] = [[name, self._number(5)] for name in names]
            case "invented decisions":
                tree["members"] = [self._decision(site, now_ms) for site in self._random.sample(self._others, 2)]
            case "many decisions":
                first = self._random.randint(0, 1_000)
                far_ms = now_ms + 10_000_000
                tree["members"] = [[f"ghost{first + n}", far_ms + n, True] for n in range(60)]
            case "counters":
                self._change_counters(tree)
            case "bytes":
                return self._changed_bytes(body)
        return msgspec.json.encode(tree)

    def refusal(self, prober: str, now_ms: int) -> bytes | None:
        """A refused probe, with a decision about its sender; None: the probe is answered."""
        if "refuse probes" not in self.tactics or self._random.random() < 0.5:
            return None
        self.injected["hostile: refuse probes"] += 1
        return msgspec.json.encode({"member": self._decision(prober, now_ms)})

    def _entries(self, tree: Tree, now_ms: int) -> Iterator[Tree]:
        """Other sites' records with another address: made up, or changed."""
        signed = {entry["name"]: entry for entry in tree.get("entries", ())}
        for site in self._random.sample(self._others, 2):
            entry = dict(signed.get(site) or self._entry(site, now_ms))
            entry["url"] = self._random.choice(_BAD_ADDRESSES)
            entry["revision"] = self._random.choice((now_ms + 1, now_ms + 100_000, _MAX_NUMBER - 1, _MAX_NUMBER))
            yield entry

    def _entry(self, site: str, now_ms: int) -> Tree:
        """A record of any site: unsigned, or signed with the only key that this one has."""
        record = SiteRecord(
            site,
            self._random.choice(("1", "9")),
            self._random.choice((address(site), *_BAD_ADDRESSES)),
            now_ms + 1_000,
            services=(("image", self._random.choice(_BAD_ADDRESSES)),),
        )
        signed = self._keys.sign_record(record)
        forged = replace(signed, certificate=_certificate(site))
        tree: Tree = msgspec.to_builtins(self._random.choice((record, signed, forged)))
        return tree

    def _decision(self, site: str, now_ms: int) -> list[Any]:
        stamps = (now_ms, now_ms + 1_000, now_ms + 100_000_000, _MAX_NUMBER - 1, _MAX_NUMBER)
        return [site, self._random.choice(stamps), self._random.random() < 0.9]

    def _change_counters(self, tree: Tree) -> None:
        names = self._random.sample(
            ("decisions", "beat", "revision", "seen", "beats", "sent_ms", "digests", "pairs"), 3
        )
        for name in names:
            match name:
                case "seen":
                    tree[name] = [self._number(1), self._number(1)]
                case "beats":
                    tree[name] = [[site, self._number(1)] for site in self._others]
                case "pairs":
                    a, b = self._random.sample(self._others, 2)
                    tree[name] = [[a, b, self._random.choice((0.0, 99_000.0)), self._number(1)]]
                case "digests":
                    tree[name] = [self._number(1) for _ in range(self._random.choice((0, 5, heartbeat.BUCKETS)))]
                case _:
                    tree[name] = self._number(int(tree.get(name, 1)))

    def _number(self, number: int) -> int:
        return self._random.choice((0, 1, number + 1, 1 << 31, _MAX_NUMBER // 2, _MAX_NUMBER - 1, _MAX_NUMBER))

    def _changed_bytes(self, body: bytes) -> bytes:
        place = self._random.randrange(len(body))
        return body[:place] + bytes([self._random.randrange(256)]) + body[place + self._random.randint(0, 2) :]


class MeshHost(Protocol):
    """What the meshes need of the world."""

    now_ms: int

    def after(self, delay_ms: int, what: Callable[[], None]) -> None: ...

    def transmit(self, arrive: Callable[[], None]) -> None: ...

    def is_cut(self, sender: str, receiver: str) -> bool: ...

    def is_running(self, site: str) -> bool: ...

    def wall_ms(self, site: str) -> int: ...

    def membership_changed(self, site: str) -> None: ...


class Meshes:
    """One mesh per site. A site that restarts reads what it saved."""

    def __init__(self, host: MeshHost, keys: Mapping[str, Keys], hostile: str, mutator: HeartbeatMutator) -> None:
        self._host = host
        self._keys = keys
        self._sites = sites = tuple(keys)
        self._hostile = hostile
        self._mutator = mutator
        self._draw = Random(f"meshes {hostile}")  # noqa: S311 - repeatable is the point
        self._meshes: dict[str, Mesh] = {}
        self.foreign_addresses: set[str] = set()  # to which honest sites sent something
        for site in sites:
            self.restart(site)
        for place, site in enumerate(sites):
            host.after(13 * place, lambda site=site: self._tick(site))  # type: ignore[misc]

    def __getitem__(self, site: str) -> Mesh:
        return self._meshes[site]

    def now(self, site: str) -> Now:
        return Now(self._host.now_ms, self._host.wall_ms(site))

    def restart(self, site: str) -> None:
        saved = self._meshes[site].saved() if site in self._meshes else None
        data = heartbeat.encode(saved) if saved else None
        record = SiteRecord(site, "1", address(site), version="1.0", services=(("image", address(site)),))
        peers = {other: address(other) for other in self._sites if other != site}
        read = heartbeat.decode_saved(data) if data else SavedMesh()
        self._meshes[site] = Mesh(record, peers, self.now(site), SETTINGS, read, self._keys[site])

    def forget_hostile(self, here: str) -> None:
        self._meshes[here].forget(self._hostile, self.now(here))
        self._host.membership_changed(here)

    # -- probes ----------------------------------------------------------------------------------------

    def _tick(self, site: str) -> None:
        delay_ms = 100
        if self._host.is_running(site):
            mesh = self._meshes[site]
            probes, _ = mesh.tick(self.now(site), self._draw.randrange)
            for probe in probes:
                self._send(site, mesh, probe)
            delay_ms = max(int(mesh.wait_ms(self.now(site))), 10)
        self._host.after(delay_ms, lambda: self._tick(site))

    def _send(self, site: str, mesh: Mesh, probe: Probe) -> None:
        receiver = next((other for other in self._sites if address(other) == probe.to_url), None)
        if receiver is None:
            # A site may say of itself that it is anywhere, if that is an address at all.
            if site != self._hostile and (probe.to_site != self._hostile or not _is_address(probe.to_url)):
                self.foreign_addresses.add(probe.to_url)
            self._host.after(20, lambda: self._failed(site, mesh, probe))
            return
        body = self._outgoing(site, heartbeat.encode(probe.payload))
        self._host.transmit(lambda: self._arrive(site, mesh, probe, receiver, body))

    def _arrive(self, site: str, mesh: Mesh, probe: Probe, receiver: str, body: bytes) -> None:
        # TLS: the receiver must have the certificate of the site that is meant.
        if self._host.is_cut(site, receiver) or not self._host.is_running(receiver) or receiver != probe.to_site:
            return
        status, response = self._answer(receiver, site, body)
        self._host.transmit(lambda: self._back(site, mesh, probe, status, response))

    def _answer(self, here: str, sender: str, body: bytes) -> tuple[int, bytes]:
        """The response of a site to a probe, with its status."""
        mesh = self._meshes[here]
        member = mesh.member_of(sender)
        if here == self._hostile and (refusal := self._mutator.refusal(sender, self._host.wall_ms(here))):
            return 403, refusal
        if member is not None and member.forgotten:
            return 403, msgspec.json.encode({"member": member})
        try:
            probe = heartbeat.decode(body)
        except CheopsError:
            return 400, b""
        if probe.sender != sender:
            return 403, b""
        answer, _ = mesh.received_probe(probe, self.now(here))
        self._host.membership_changed(here)
        return 200, self._outgoing(here, heartbeat.encode(answer))

    def _back(self, site: str, mesh: Mesh, probe: Probe, status: int, body: bytes) -> None:
        if self._meshes[site] is not mesh or not self._host.is_running(site):
            return
        if self._host.is_cut(probe.to_site, site):
            return
        try:
            if status != 200:
                member = heartbeat.decode_refusal(body) if status == 403 else None
                if member is not None:
                    mesh.learn_own_membership(member, probe.to_site, self.now(site))
                self._failed(site, mesh, probe)
                return
            answer = heartbeat.decode(body)
            if answer.sender != probe.to_site:
                self._failed(site, mesh, probe)
                return
        except CheopsError:
            self._failed(site, mesh, probe)
            return
        mesh.probe_answered(probe.id, answer, self.now(site))
        self._host.membership_changed(site)

    def _failed(self, site: str, mesh: Mesh, probe: Probe) -> None:
        if self._meshes[site] is mesh and self._host.is_running(site):
            mesh.probe_failed(probe.id, self.now(site))
            self._host.membership_changed(site)

    def _outgoing(self, site: str, body: bytes) -> bytes:
        return self._mutator.mutate(body, self._host.wall_ms(site)) if site == self._hostile else body

    # -- what must hold ----------------------------------------------------------------------------------

    def problems(self, honest: tuple[str, ...]) -> Iterator[str]:
        """What is wrong with the meshes of the honest sites, some seconds after the hostile one was forgotten."""
        for url in sorted(self.foreign_addresses):
            yield f"an honest site connected to {url!r}"
        for site in honest:
            mesh = self._meshes[site]
            if mesh.is_forgotten:
                yield f"{site} believes that it was forgotten"
            if mesh.forgotten != frozenset({self._hostile}):
                yield f"{site} has forgotten {sorted(mesh.forgotten)[:5]}, not {self._hostile}"
            known = {view.name for view in mesh.sites(self.now(site))}
            if invented := sorted(known.difference(self._sites)):
                yield f"{site} believes in {invented[:5]}"
            for other in honest:
                record = mesh.entry_of(other)
                if record is None or record.url != address(other):
                    yield f"{site} has {record.url if record else 'no address'!r} for {other}"
                if other != site and other not in mesh.up:
                    yield f"{site} takes {other} for down"
                if record and record.revision > self._host.wall_ms(site) + 60_000:
                    yield f"{site} has a record of {other} from the future"
