"""Valid samples, from which inputs are made. Short ones: what is small gets through more of its parser."""

import gzip
import json

import msgspec

from cheops.backends.http.payload import Request, command_of
from cheops.engine.documents import Base, Message, Piece, Snapshot
from cheops.gateway.pages import Position, written
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import (
    Command,
    FileRef,
    Kind,
    MatrixRef,
    Operation,
    OpId,
    Origin,
    Reply,
    Seal,
    Stamp,
    Status,
    Verdict,
)
from cheops.notify.event import Event
from cheops.peers import frames, heartbeat, links
from cheops.peers.couchdb.documents import couch_document
from cheops.peers.frames import Answer, HttpHead, Opening
from cheops.store import codec

PARIS, LYON = Origin("paris", "3f2a"), Origin("lyon", "91c0")
RULES = Matrix([Entry("set", "set", Result.TAKE_ONE), Entry("set", "inc", Result.KEEP_ORDER)])
_BORN = Stamp(1_700_000_000_000, 0, PARIS)
_REF = MatrixRef(RULES.hash, _BORN)


def operation(n: int, kind: Kind = Kind.NORMAL, **changes: object) -> Operation:
    fields: dict[str, object] = {
        "resource": "counter",
        "rtype": "t",
        "type": "set" if n % 2 else "inc",
        "kind": kind,
        "payload": Command(f"set {n}", (FileRef("f", "0" * 64, 7),) if n == 3 else ()),
        "origin": PARIS,
        "seq": n,
        "deps": {PARIS: n - 1} if n > 1 else {},
        "stamp": Stamp(_BORN.time_ms + n, 0, PARIS),
        "matrix": _REF,
        "sites": ("paris", "lyon", "here") if n == 1 else None,
        "verdict": Verdict.OK,
    }
    return Operation(**(fields | changes))  # type: ignore[arg-type]  # a document's fields


OPERATIONS = (
    operation(1),
    operation(2),
    operation(3),
    operation(4, verdict=Verdict.VOID, why="no"),
    operation(5, Kind.SITES, sites=("paris", "here")),
    operation(6, Kind.DELETE),
    operation(7, Kind.FORCE),
    operation(8, Kind.SEAL, seal=Seal({PARIS: 7}, _BORN, (PARIS,)), payload=Command("")),
)
REPLIES = (
    Reply("counter", LYON, 1, OpId(PARIS, 1), "set", Status.OK, ("set", "inc"), output="OK"),
    Reply("counter", LYON, 2, OpId(PARIS, 2), "inc", Status.KO, detail="no"),
    Reply("counter", LYON, 3, None, "", Status.OK, ("*",), replay=True),
)
MESSAGES = (
    Message("counter", "3f2a", OPERATIONS[:2], REPLIES[:1], (RULES,), {PARIS: 2}, {LYON: 1}),
    Message("counter", "3f2a", OPERATIONS[2:5], known={PARIS: 5}, settled={PARIS: 2}, ask=True),
    Message("counter", "3f2a", OPERATIONS[5:], REPLIES, busy=True, digest="x", wanted=(RULES.hash,)),
    Message(
        "counter",
        "3f2a",
        OPERATIONS[:1],
        matrices=(RULES,),
        known={PARIS: 8},
        snapshot=Snapshot({PARIS: 1}, {LYON: 1}, Base({PARIS: 1}, Command("write 1")), _REF, (), root=_BORN),
    ),
    Message("counter", "3f2a", OPERATIONS[:2], matrices=(RULES,), ask=True, piece=Piece("9f", 1, 2)),
    Message(
        "counter",
        "3f2a",
        replies=REPLIES,
        known={PARIS: 8},
        ask=True,
        snapshot=Snapshot({PARIS: 1}, {LYON: 1}, None, _REF, (), root=_BORN),
        piece=Piece("9f", 2, 2),
    ),
    Message("counter", "3f2a", known={PARIS: 1}, source="here", held=Piece("9f", 1, 2)),
)

SCOPES = (
    b"paris",
    b"{compute: paris, image: paris & lyon}",
    b"{image: (paris ; brest) & lyon}",
    b'{"a b": paris%lyon, c: "x\\"y" ; z}',
    b"around(paris, 10ms)",
    b"{image: strong(a & b & c)}",
    "{été: Orléans & 日本}".encode(),
)
MATRICES_JSON = (
    b'{"ResolutionMatrix": [{"Before": "set", "After": "inc", "Result": "take-both-keep-order"}]}',
    b'{"types":["set","inc"],"matrix":[{"before":"set","after":"set","result":"take-one"}]}',
)
MATRICES_YAML = (
    b"types: [set, inc]\nmatrix:\n  - {before: inc, after: inc, result: take-both, concurrent: take-both}\n",
    b"matrix:\n- before: a\n  after: b\n  result: take-one\n",
)
CONFIGURATIONS = (
    b"site: site1\nlisten: 127.0.0.1:8079\nsecurity: none\npeers: {site2: 'http://127.0.0.2:8079'}\n",
    b"""site: s
data: ./d
types:
  counter:
    matrix:
      - {before: set, after: set, result: take-one}
    allow: ["redis-cli set * *", "redis-cli incrby * *"]
    read: redis-cli get __ID__
    show: []
    reset: redis-cli set __ID__ 0
    checkpoint: {read: "redis-cli get __ID__", write: "redis-cli set __ID__ {state}", after: 10}
    on_error: decompose
    decompose: {amount: 4, unit: redis-cli incrby __ID__ 1}
    timeout: 30s
    max_output: 64KiB
    env: {A: b}
    limits: {cpu: 10s, memory: 1GiB, files: 20, processes: 100}
    retry_on: [busy]
    no_new_privileges: true
heartbeat: {every: 1s, down_after: 5s}
""",
    b"""site: s
services:
  image:
    url: http://127.0.0.1:9292
    listen: 127.0.0.1:9392
    outbound: 127.0.0.1:9492
gateway: {connections: 100, head_size: 64KiB}
notify:
  - {name: a, webhook: {url: "http://127.0.0.1:1/x"}, events: [diverged]}
security: {folder: tls, clock_skew: 60s}
limits: {drafts: 10}
""",
)
DOCUMENTS = tuple(codec.encode(one) for one in (*OPERATIONS, *REPLIES, RULES))
ENCODED_MESSAGES = tuple(map(codec.encode_message, MESSAGES))
FRAMES = (
    frames.encode_frame(1, 1, frames.encode_payload(Opening("messages", b"x")), 3) + frames.encode_frame(6, 0),
    frames.encode_frame(1, 3, frames.encode_payload(Opening("http", http=HttpHead("GET", "/", (("a", "b"),)))))
    + frames.encode_frame(3, 3, b"body", 1),
    frames.encode_frame(2, 2, frames.encode_payload(Answer(200, b"x", 7, (("a", "b"),))), 1)
    + frames.encode_frame(5, 0, frames.encode_amount(9))
    + frames.encode_frame(8, 0, b"why"),
)
ENVELOPES = (*(links.pack("paris", [one]) for one in MESSAGES), links.pack("paris", MESSAGES))
COUCH = tuple(bytes(couch_document(one).as_couch(history=True)) for one in (*OPERATIONS[:3], REPLIES[0], RULES))
BULK = tuple(b'{"new_edits":false,"docs":[' + one + b"]}" for one in COUCH)
HEARTBEATS = (
    heartbeat.encode(heartbeat.Heartbeat("paris", "3f2a", 1, 5, 1.7e12)),
    heartbeat.encode(
        heartbeat.Heartbeat(
            "paris",
            "3f2a",
            2,
            6,
            1.7e12,
            received_ms=1.7e12,
            seen=(1, 2),
            regular=True,
            digests=(1, 2, 3),
            entries=(
                heartbeat.SiteRecord("paris", "3f2a", "http://127.0.0.1:1", 2, "1", (("image", "http://h:1"),)),
                heartbeat.SiteRecord("lyon", "91c0", "http://127.0.0.1:2"),
            ),
            beats=(("lyon", 4),),
            pairs=(("paris", "lyon", 3.5, 4),),
            members=(heartbeat.MembershipRecord("lyon", 1_700_000_000_000, forgotten=True),),
        )
    ),
)
REQUESTS = (
    command_of(Request(method="POST", path="/images", headers=(("Content-Type", "application/json"),), text="{}", item="/images/{id}")).line.encode(),
    command_of(Request(method="DELETE", path="/images/1", item="/images/1", named=True, query="a=b")).line.encode(),
    command_of(Request(base=True)).line.encode(),
    command_of(Request(method="PUT", path="/x", base64="AAEC", key="k", ticket="t", exists="adopt")).line.encode(),
)  # fmt: skip
COMMANDS = (
    b"redis-cli incrby __ID__ 13\0counter\0f",
    b"kubectl apply -f {deploy.yaml}\0n\0deploy.yaml",
    b"printf '%s' \"__ID__\" '__ID__'\0$(touch x)\0f",
    b"rm /data/__ID__\0../etc\0f",
    b'echo a\\ b \'c d\' "e\\"f"\0-x\0a"b',
)
BODIES = (
    b'{"id": 5, "links": [{"href": "http://h/images/5"}], "name": "a\\u00e9\\\\"}',
    b'[1, 2.5e3, -7, "abcdef0123456789", null, true, {"a": [[]]}]',
    b'{"id": "0194f3e2-7c5a-7000-8000-00000000c0de", "url": "/images/abc123def456"}',
)
LISTS = (
    b'{"servers": [{"id": 5, "name": "a\\u00e9"}, [], "x", 1e3, null], "next": "/servers?marker=5", "first": null}',
    b'[1, 2.5e3, -7, "abc", true, {"a": [[{}]]}]',
    b'{"kind": "List", "metadata": {"continue": "abc"}, "items": [{"metadata": {"name": "x"}}]}',
)
PAGE_MARKERS = (
    written(
        Position((("site1",), ("site2", "site3")), 1, "limit=3&marker=5", "site3", "a", (("site1", 503),), "url")
    ).encode(),
    b'</servers?page=2>; rel="next", </servers?page=1>; rel=first',
    b"limit=5&page%5Bsize%5D=3&a=b",
)
EVENTS = (
    b"id: 1\nevent: accepted\ndata: "
    + msgspec.json.encode(dict.fromkeys(Event.__struct_fields__, "x"))
    + b"\n\n: still here\n",
    b'data:{"id":"1","kind":"accepted"}\n\n',
)
_B = b"--XX"
MULTIPART = (
    _B + b'\r\nContent-Disposition: form-data; name="command"\r\n\r\ntrue\r\n' + _B
    + b'\r\nContent-Disposition: form-data; name="sites"\r\n\r\nhere\r\n' + _B
    + b'\r\nContent-Disposition: form-data; name="type"\r\n\r\nset\r\n' + _B + b"--\r\n",
    _B + b'\r\nContent-Disposition: form-data; name="f.txt"; filename="f.txt"\r\nContent-Type: text/plain\r\n\r\nabc\r\n' + _B
    + b'\r\nContent-Disposition: form-data; name="config.json"; filename="config.json"\r\n\r\n' + MATRICES_JSON[0] + b"\r\n" + _B + b"--\r\n",
    b"command=true&sites=here&type=set&timeout=0&force=1",
)  # fmt: skip
API_BODIES = tuple(
    json.dumps(one).encode()
    for one in (
        {"type": "set", "command": "true", "sites": "here", "resource_type": "t", "kind": "normal"},
        {"type": "set", "command": "true", "sites": "here", "matrix": json.loads(MATRICES_JSON[1])},
        {"operation": "here:1", "how": "happened", "happened": True},
        {"sites": "here", "how": "set", "add": ["a"], "remove": []},
        {"local_id": "5", "is_number": True},
        {"resource": "n", "command": ""},
        {"name": "laptop", "role": "viewer", "lasts": "30d", "types": ["t"]},
    )
)
HEADS = (
    b"GET /images?a=b HTTP/1.1\r\nHost: image\r\nScope: {image: here}\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nabcGET / HTTP/1.1\r\nHost: h\r\n\r\n",
    b"PUT http://image/x HTTP/1.1\r\nHost: image\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCheops-Hop: lyon\r\nVia: 1.1 cheops-x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nCheops-Dry-Run: 1\r\nScope: a & b\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    b"DELETE /images/5 HTTP/1.1\r\nHost: h\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-For: x\r\nAuthorization: Bearer x\r\n\r\n",
)  # fmt: skip
ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\n{}\r\n0\r\nX: y\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nLocation: /images/5\r\nConnection: close\r\n\r\nabc",
    b"HTTP/1.0 404 Not Found\r\nContent-Type: application/json\r\n\r\n{}",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nabc",
    b"HTTP/1.1 204 No Content\r\nCheops-Site: x\r\nSet-Cookie: a\r\n\r\n",
)
GZIP = (gzip.compress(b"{}" * 10, mtime=0), gzip.compress(b"\0" * 100_000, mtime=0), b"{}")
CREDENTIALS = (b"X-Auth-Token: abc\nAuthorization: Bearer x\n", b"# a comment\nA: b\n\n")
WEB_TOKENS = (b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl", b"a.e30.c", b"a.W10.")
SECRETS = (
    b'{"server": {"id": "5", "adminPass": "x"}, "keys": [{"private_key": {"a": 1}}]}',
    b"name=x&password=y&user%5Bpassword%5D=z",
    b'--b\r\nContent-Disposition: form-data; name="password"\r\n\r\nx\r\n--b--',
    b"<a:user><a:password>x</a:password></a:user>",
)
IDS = (b"op/counter/paris/3f2a/7", b"reply/a%2Fb/lyon/91c0/2", b"matrix/abc", b"clock", b"_design/x")
