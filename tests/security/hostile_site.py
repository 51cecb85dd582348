"""A stolen site as a tool: a real peer with a real certificate, which answers as a site does and lies as it is told.

It listens at the address of its site, for channels over mutual TLS: heartbeats are answered, messages are taken and kept, files are
served as an attack wants. So honest sites see it up, and share resources with it. Each attack is a method; its
docstring says what the thief tries. What a thief signs is signed with the key of its own site: other keys it has not.

Encoders of Cheops are used without the checks by which an honest site finds its own mistakes.
"""

import contextlib
import gzip
import http.client
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from msgspec.structs import replace

from cheops.engine.documents import Base, Document, Message, Snapshot, key_of
from cheops.log.operation import Command, Kind, Operation, Origin, Reply, Seal, Stamp, Status, Verdict
from cheops.peers import heartbeat, links
from cheops.peers.couchdb import documents as couch
from cheops.peers.frames import Answer
from cheops.peers.heartbeat import Heartbeat, MembershipRecord, SiteRecord
from cheops.peers.prober import PROBE_PATH
from cheops.peers.proofs import decision_content, record_content
from cheops.peers.requests import RequestKind
from cheops.peers.streams import IncomingRequest
from cheops.security.certificates import dns_name, fingerprint
from cheops.security.keyring import KeyFolder, load_key_folder
from cheops.security.tls import ServerContext, client_context
from cheops.store import codec
from tests.agent.rig import until
from tests.security.honest_sites import NAMES, STOLEN, HonestSites
from tests.security.rogue import Rogue, signed
from tests.security.sites import states
from tests.support.channel_server import ChannelServer

INCARNATION = "rogue"
HIGHEST = 2**53 - 1  # the greatest number that the format has
JSON = {"Content-Type": "application/json"}
Served = Callable[[IncomingRequest], Awaitable[None]]


def now_ms() -> int:
    return int(time.time() * 1000)


def envelope(site: str, messages: Iterable[Message]) -> bytes:
    """Messages as `links.pack` has them, whatever they hold: nothing is checked there."""
    return links.pack(site, messages)


def raw_document(document: Document) -> msgspec.Raw:
    """A document as CouchDB has it, whatever it holds."""
    body = codec._encoder.encode(document)
    rev = couch._revision_of(document, msgspec.json.decode(body))
    return couch.CouchDocument(codec.id_of(key_of(document)), rev, body).as_couch()


class HostileSite(Rogue):
    """One stolen site. `lies` are fields of the heartbeats that it answers with; `files` is what it serves."""

    def __init__(self, honest: HonestSites, name: str = STOLEN) -> None:
        self.honest = honest
        self.lies: dict[str, Any] = {}
        self.files: dict[str, Served] = {}
        self.asked_files: list[str] = []
        self.received: list[Message] = []
        self.heard: dict[str, SiteRecord] = {}  # the records that other sites signed
        self._lock = Lock()
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._folder_path = honest.rig.folder(name) / "tls"
        self._revision = now_ms()
        super().__init__(honest.rig, load_key_folder(self._folder_path))
        # Mutual TLS, as agents have it.
        self._context = ServerContext(self.folder, lambda *_: None)
        address = urlsplit(self.rig.url(self.name))
        host, port = str(address.hostname), address.port or 0
        self._server = ChannelServer(
            self.name, host, port, self._answer, lambda _kind, body: self.take_messages(body), self._context.context
        )

    def close(self) -> None:
        self._close_connections()
        self._server.close()

    async def _answer(self, request: IncomingRequest) -> None:
        kind, name = request.opening.kind, ""
        body = await request.body.read(10_000_000)
        if kind == RequestKind.HEARTBEAT:
            request.respond(Answer(200, self.answer_to(body)))
            return
        if kind == RequestKind.FILE:
            name = body.decode()
            self.asked_files.append(name)
        if serve := self.files.get(name):
            await serve(request)
        else:
            request.respond(Answer(404, b"{}"))

    def take_new_keys(self) -> None:
        """Its operator gave it new keys and a new certificate; those from before are worth nothing any more."""
        assert self.rig.pki
        # Later than the decision to admit it, or it would be one of those that are revoked.
        made_s = time.time() + 0.002
        path = self._folder_path.with_name(f"tls-{now_ms()}")
        self.use(self.rig.pki.site(path, self.name, "127.0.0.1", made_s=made_s))

    def use(self, folder: KeyFolder) -> None:
        """From now on, these keys and this certificate."""
        self.folder = folder
        self._close_connections()
        self._context.replace(folder)
        self._server.cut()

    @property
    def origin(self) -> Origin:
        return Origin(self.name, INCARNATION)

    # -- requests ------------------------------------------------------------------------------------------

    def ask(self, to: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
        """A request with the certificate of the stolen site, over a connection that stays open."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for attempt in (1, 2):
            connection = self._connection(to)
            try:
                connection.request(method, path, body or None, named)
                found = connection.getresponse()
                content = found.read()
                break
            except (OSError, http.client.HTTPException):  # an agent closes connections that it refuses, or that rest
                self._connections.pop(to).close()
                if attempt > 1:
                    raise
        with contextlib.suppress(ValueError):
            return found.status, json.loads(content)
        return found.status, content

    def _connection(self, to: str) -> http.client.HTTPConnection:
        if to not in self._connections:
            address = urlsplit(self.rig.url(to))
            plain = socket.create_connection((str(address.hostname), address.port or 0), timeout=60)
            connection = http.client.HTTPConnection(str(address.hostname), address.port)
            connection.sock = client_context(self.folder).wrap_socket(plain, server_hostname=dns_name(to))
            self._connections[to] = connection
        return self._connections[to]

    def _close_connections(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections = {}

    def post(self, to: str, *messages: Message, packed: bool = False) -> tuple[int, Any]:
        """Messages of its engine, so to say."""
        body = envelope(self.name, messages)
        more = {"Content_Encoding": "gzip"} if packed else {}
        path = f"/{links.MESSAGES_PATH}"
        return self.ask(
            to, "POST", path, gzip.compress(body) if packed else body, Content_Type=JSON["Content-Type"], **more
        )

    def tell(self, to: str, *found: Operation | Reply, **more: Any) -> tuple[int, Any]:
        """Documents, as one message."""
        ops = tuple(d for d in found if isinstance(d, Operation))
        replies = tuple(d for d in found if isinstance(d, Reply))
        return self.post(to, Message(found[0].resource, INCARNATION, ops, replies, **more))

    def tell_all(self, *found: Operation | Reply, **more: Any) -> None:
        for name in NAMES:
            self.tell(name, *found, **more)

    # -- what it knows ---------------------------------------------------------------------------------------

    def operations(self, page: str) -> dict[str, Operation]:
        """Of a resource that it is involved in, as other sites sent them."""
        with self._lock:
            return {str(op.id): op for message in self.received if message.resource == page for op in message.ops}

    def known(self, page: str) -> dict[Origin, int]:
        known: dict[Origin, int] = {}
        for op in self.operations(page).values():
            known[op.origin] = max(op.seq, known.get(op.origin, 0))
        return known

    def shared_page(self, about: str) -> str:
        """A page of all four sites, with a line of each honest one, which this site knows."""
        until(lambda: all(states(self.honest.rig, name)[self.name] == "up" for name in NAMES), "for it to be up at all")
        page = self.honest.new_page(about, " & ".join((*NAMES, self.name)))
        until(lambda: {origin.site for origin in self.known(page)} >= set(NAMES), f"for {self.name} to hear of {page}")
        return page

    def line(self, page: str, text: str, seq: int = 1, **changes: Any) -> Operation:
        """One more line for a page of its own, as an honest site would sign it."""
        like = max(self.operations(page).values(), key=lambda op: op.stamp)
        own = {self.origin: seq - 1} if seq > 1 else {}
        # The later number has the later stamp, or nobody takes it.
        stamp = Stamp(now_ms(), seq, self.origin)
        deps = {**self.known(page), **own}
        given = {"type": "add", "seq": seq, "origin": self.origin, "deps": deps, "stamp": stamp, **changes}
        return self.operation(like, f"add-line pages/__ID__ {text}", **given)

    def new_resource(self, id_: str, *sites: str, **changes: Any) -> Operation:
        """The first operation of a resource, on which `add-line` is to run."""
        given = {"origin": self.origin, "type": "add", "rtype": "page", **changes}
        command = "touch __ID__" if given["rtype"] == "note" else "add-line pages/__ID__ stolen"
        return self.begin(id_, str(given.pop("rtype")), command, *(sites or (self.name, *NAMES)), **given)

    # -- heartbeats ------------------------------------------------------------------------------------------

    def record(self, **changes: Any) -> SiteRecord:
        """What it says of itself."""
        given = {"name": self.name, "incarnation": INCARNATION, "url": self.rig.url(self.name), **changes}
        return self.sign_record(SiteRecord(**{"revision": self._revision, **given}))

    def sign_record(self, record: SiteRecord) -> SiteRecord:
        """With the key of the stolen site, and its certificate, whatever the record says."""
        unsigned = replace(record, certificate=self.folder.identity.der, signature=b"")
        return replace(unsigned, signature=self.folder.signing_key.sign(record_content(unsigned)))

    def beat(self, **changes: Any) -> Heartbeat:
        """As an honest site would send it, but for these changes."""
        sent_ms = time.time() * 1000
        given = {
            "sender": self.name,
            "incarnation": INCARNATION,
            "revision": self._revision,
            "beat": now_ms(),
            **changes,
        }
        return Heartbeat(**{"sent_ms": sent_ms, "entries": (self.record(),), **given})

    def probe(self, to: str, **changes: Any) -> tuple[int, Any]:
        """A heartbeat to one site, unasked; gives its answer."""
        return self.ask(to, "POST", f"/{PROBE_PATH}", heartbeat.encode(self.beat(**changes)))

    def gossip(self, to: Iterable[str] = NAMES, **changes: Any) -> list[int]:
        """The same to several sites."""
        return [self.probe(name, **changes)[0] for name in to]

    def answer_to(self, body: bytes) -> bytes:
        """The answer to a heartbeat of an honest site."""
        received_ms = time.time() * 1000
        with self._lock:
            self.heard |= {entry.name: entry for entry in heartbeat.decode(body).entries}
        return heartbeat.encode(self.beat(received_ms=received_ms, **self.lies))

    @contextlib.contextmanager
    def lying(self, **fields: Any) -> Any:
        """Every answer to a heartbeat has these fields, until the block ends."""
        self.lies = fields
        try:
            yield
        finally:
            self.lies = {}

    # -- attacks with documents --------------------------------------------------------------------------------

    def send_ids(self, ids: Iterable[str], rtype: str = "page") -> None:
        """Begin resources whose ids lead commands out of their directory, or a terminal astray: by messages and by
        snapshots."""
        for id_ in ids:
            op = self.new_resource(id_, rtype=rtype)
            for name in NAMES:
                self.tell(name, op)
                self.post(
                    name, Message(id_, INCARNATION, (op,), snapshot=Snapshot({self.origin: 1}, {}, None, None, ()))
                )

    def send_high_numbers(self, page: str) -> None:
        """Use up the numbers of others: their clocks, the numbers of their operations and replies, what they know."""
        first = min(self.operations(page).values(), key=lambda op: op.stamp)
        origins = {*self.known(page), self.origin}
        highest = dict.fromkeys(origins, HIGHEST)
        invented = {Origin(f"ghost{n}", "x"): HIGHEST for n in range(2_000)}
        stamp = Stamp(now_ms() + 20_000, HIGHEST, self.origin)  # clocks may differ by so much
        variants: tuple[dict[str, Any], ...] = (
            {"stamp": stamp},
            {"stamp": Stamp(0, HIGHEST, self.origin)},
            {"seq": HIGHEST},
            {"deps": {first.origin: HIGHEST}},
            {"deps": invented},
            {"matrix": first.matrix._replace(introduced=stamp)},
        )
        for number, changes in enumerate(variants):
            self.tell_all(self.new_resource(f"{page}-{number}", **changes))
            self.tell_all(self.line(page, f"number-{number}", **changes))
        for origin in origins:
            reply = signed(Reply(page, self.origin, HIGHEST, first.id, first.key, Status.OK), self.folder)
            self.tell_all(reply, replies_after={origin: HIGHEST - 1, self.origin: 0})
        for vector in (highest, invented):
            for field in ("known", "settled", "known_replies", "replies_after"):
                for name in NAMES:
                    self.post(name, replace(Message(page, INCARNATION), **{field: vector}))

    def send_snapshots(self, page: str) -> None:
        """Erase what others have acknowledged, by snapshots that say that it was forgotten long ago."""
        ops = self.operations(page)
        first = min(ops.values(), key=lambda op: op.stamp)
        known = self.known(page)
        beyond = {**known, self.origin: 1}
        far = {origin: seq + 1_000 for origin, seq in known.items()}
        forged = Base(known, Command("add-line pages/__ID__ forged"))
        for floor, base in (
            (beyond, None),
            (beyond, forged),
            ({**beyond, Origin("ghost", "x"): 7}, None),
            (far, None),
            (far, Base(far, forged.write)),
            (dict.fromkeys(beyond, HIGHEST), None),
            *(({origin: seq + 1}, None) for origin, seq in known.items()),
        ):
            snapshot = Snapshot(floor, dict(floor), base, first.matrix, (), root=first.stamp)
            for name in NAMES:
                for kept in ((first,), tuple(ops.values()), ()):
                    self.post(name, Message(page, INCARNATION, kept, known=floor, settled=floor, snapshot=snapshot))

    def send_two_contents(self, page: str) -> None:
        """Sign two operations under one id, and send each to another site."""
        left, right = self.line(page, "left"), self.line(page, "right")
        self.tell("site1", left)
        self.tell("site2", right)

    def send_false_seal(self, page: str, how: str) -> None:
        """Say that something is settled for good of which other sites have not heard, so that theirs comes too late.
        Alone, or in the name of all sites, whose statements it does not have."""
        own, known = {self.origin: 1}, self.known(page)
        alone = how.startswith("alone")
        sites = (self.name,) if alone else (self.name, *NAMES)
        early = how == "alone, of old"
        begun = self.line(page, "before-the-seal", deps={}, sites=sites)
        if early:
            begun = self.operation(begun, begun.payload.line, stamp=Stamp(1, 0, self.origin), deps={}, sites=sites)
        root, oldest = begun.stamp, Stamp(0, 0, self.origin)
        far = {origin: seq + 50 for origin, seq in known.items()}
        stable, deps, sealed_root = {
            "alone": (own, own, root),
            "alone, of old": (own, own, root),
            "apart": (own, own, root),
            "apart, of old": (own, own, oldest),
            "after all": (own, {**known, **own}, root),
            "after all, of old": (own, {**known, **own}, oldest),
            "of all": ({**known, **own}, {**known, **own}, root),
            "beyond": ({**far, **own}, {**known, **own}, root),
            "highest": (dict.fromkeys(known, HIGHEST), {**known, **own}, root),
        }[how]
        self.tell_all(begun)
        given = {"origin": self.origin, "seq": 2, "kind": Kind.SEAL, "type": "seal", "deps": deps}
        stamp = root._replace(counter=2) if early else Stamp(now_ms(), 2, self.origin)
        named = (self.origin, *(Origin(name, "1") for name in sites if name != self.name))
        for signers in {named, (self.origin,)}:
            made = self.operation(begun, "", stamp=stamp, seal=Seal(stable, sealed_root, signers), **given)
            self.tell_all(made, known={**known, self.origin: 2}, settled={**known, self.origin: 2})

    def send_false_progress(self, page: str) -> None:
        """Say that it has settled everything and more, under digests of its own."""
        known = self.known(page)
        for settled in (known, {origin: seq + 1 for origin, seq in known.items()}, {}):
            for digest in ("", "0" * 32, "\x1b[31m"):
                for name in NAMES:
                    given: dict[str, Any] = {
                        "known": known,
                        "settled": settled,
                        "known_replies": settled,
                        "digest": digest,
                    }
                    self.post(name, Message(page, INCARNATION, ask=True, **given))

    def send_in_disorder(self, page: str, count: int = 6) -> None:
        """Send everything several times, backwards, and in pieces."""
        own = [self.line(page, f"disorder-{seq}", seq) for seq in range(1, count + 1)]
        everything = [*self.operations(page).values(), *own]
        for batch in (own[::-1], everything[::-1], everything, own[::2], own[1::2]):
            for name in NAMES:
                self.tell(name, *batch)
                for op in batch:
                    self.tell(name, op, op)

    def send_from_outside(self, page: str, like: Operation) -> None:
        """Change a resource that it is not involved in: by operations, by lists of sites, replies and snapshots."""
        sites = (self.name, *NAMES)
        for op in (
            self.operation(like, "add-line pages/__ID__ stolen", origin=self.origin, type="add"),
            self.operation(like, "rm -f pages/__ID__", origin=self.origin, kind=Kind.DELETE, type="delete"),
            self.operation(like, "", origin=self.origin, kind=Kind.SITES, type="sites", sites=sites),
            self.operation(like, "add-line pages/__ID__ forced", origin=self.origin, kind=Kind.FORCE, type="set"),
            self.new_resource(page),
            self.new_resource(page, stamp=Stamp(0, 0, self.origin)),
        ):
            self.tell_all(op)
            snapshot = Snapshot({like.origin: 9}, {}, None, like.matrix, (), root=op.stamp)
            for name in NAMES:
                self.post(name, Message(page, INCARNATION, (op,), snapshot=snapshot, known={like.origin: 9}))
        reply = signed(Reply(page, self.origin, 1, like.id, like.key, Status.KO, detail="stolen"), self.folder)
        self.tell_all(reply)

    def send_for_others(self, page: str) -> None:
        """Sign operations and replies of other sites with its own key, and alter those that it has."""
        for op in self.operations(page).values():
            self.tell_all(signed(replace(op, payload=Command("add-line pages/__ID__ altered")), self.folder))
            self.tell_all(replace(op, payload=Command("add-line pages/__ID__ altered")))
            self.tell_all(
                signed(replace(op, seq=op.seq + 1, payload=Command("add-line pages/__ID__ next")), self.folder)
            )
            for status in (Status.OK, Status.KO):
                forged = Reply(page, op.origin, 50, op.id, op.key, status, detail="forged")
                self.tell_all(signed(forged, self.folder), replies_after={op.origin: 0})

    def send_escapes(self, page: str, escape: str) -> None:
        """Write sequences into every text that could reach a log or the terminal of an operator."""
        op = self.line(page, "escapes", type=escape)
        self.tell_all(op)
        self.tell_all(self.line(page, f"escaped{escape}", 2))
        self.tell_all(self.line(page, "void", 3, verdict=Verdict.VOID, why=escape))
        self.tell_all(self.new_resource(f"escape{escape}"), self.new_resource(f"escape{escape}", rtype=escape))
        self.tell_all(
            signed(Reply(page, self.origin, 1, op.id, escape, Status.KO, detail=escape, output=escape), self.folder)
        )
        for name in NAMES:
            self.post(name, Message(page, escape, digest=escape, wanted=(escape,)))
            self.ask(name, "POST", f"/{links.MESSAGES_PATH}", msgspec.msgpack.encode([self.name, [escape.encode()], 1]))
            self.ask(name, "GET", "/peer/files/%1b%5b31m")

    # -- attacks with heartbeats -------------------------------------------------------------------------------

    def invent_decisions(self, count: int) -> None:
        """Push the decisions of others out of every list: invented ones, stamped in the future."""
        far = now_ms() + 10**12
        records = [self.sign_decision(MembershipRecord(f"ghost{n}", far + n, forgotten=True)) for n in range(count)]
        for start in range(0, count, 64):
            self.gossip(members=tuple(records[start : start + 64]))

    def decide_about(self, site: str, stamp_ms: int, *, forgotten: bool) -> None:
        """Ban a site, or bring one back, without anybody's leave."""
        bare = MembershipRecord(site, stamp_ms, forgotten)
        for member in (bare, self.sign_decision(bare)):
            self.gossip(members=(member,))

    def sign_decision(self, decision: MembershipRecord) -> MembershipRecord:
        """In the name of the authority, whose certificate is known to all, with the key of the stolen site."""
        (authority,) = self.folder.authorities.certificates
        signature = self.folder.key.sign(decision_content(decision), ECDSA(SHA256()))
        return replace(decision, authority=fingerprint(authority).hex()[:32], signature=signature)

    def rewrite_address(self, site: str, url: str, revision: int) -> None:
        """Redirect what is meant for another site."""
        bare = SiteRecord(site, "stolen", url, revision, services=(("vault", url),))
        known = self.heard.get(site)  # what that site signed, with another address
        entries = [bare, self.sign_record(bare)]
        entries += [replace(known, url=url, revision=revision), replace(known, url=url)] if known else []
        for entry in entries:
            self.gossip(entries=(self.record(), entry))

    def advertise(self, url: str, **changes: Any) -> None:
        """Give itself an address that programs may take for more than an address."""
        with contextlib.suppress(heartbeat.MeshError):
            self.gossip(entries=(self.record(url=url, revision=now_ms(), services=(("vault", url),), **changes),))

    def invent_sites(self, count: int, url: str) -> None:
        """Fill the list of sites, and have agents connect to where it likes."""
        made = [self.sign_record(SiteRecord(f"ghost{n}", "x", url, now_ms())) for n in range(count)]
        for start in range(0, count, 50):
            self.gossip(
                entries=(self.record(), *made[start : start + 50]),
                beats=tuple((one.name, HIGHEST) for one in made[start : start + 50]),
            )

    def take_messages(self, body: bytes) -> None:
        messages = links.unpack(body).messages
        with self._lock:
            self.received += messages


@contextlib.contextmanager
def hostile_site(honest: HonestSites) -> Any:
    """A stolen site that every honest one takes for up."""
    site = HostileSite(honest)
    try:
        until(
            lambda: all(states(honest.rig, name)[site.name] == "up" for name in NAMES), "for the stolen site to be up"
        )
        yield site
    finally:
        site.close()
