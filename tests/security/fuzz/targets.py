"""The table: every parser of outside bytes, valid samples for it, and the only errors that may come out of it.

A target gets bytes and either returns or raises one of its allowed errors; anything else, or taking too long,
or too much memory, is a finding. Those that need an event loop are in serving.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import msgspec

from cheops.api.handlers.operations import operation_request
from cheops.api.models.operations import ChangeSites, ResolveRequest, SubmitRequest
from cheops.api.models.resources import LocalId
from cheops.api.request import InvalidError, decode_body
from cheops.api.submission import RequestError, check_names
from cheops.backends.command.line import CommandLineError, CommandNotAllowedError, invocation
from cheops.backends.command.runner import CommandRunner
from cheops.backends.http.copies import Copy, Index
from cheops.backends.http.credentials import CredentialProvider, CredentialsError
from cheops.backends.http.identity import claimed_client
from cheops.backends.http.ids import Form, LocalIdTranslator, MetaIdTranslator, NoCopyError, meta_id_of
from cheops.backends.http.payload import PayloadError, request_of
from cheops.backends.http.rules import check_place, check_rules
from cheops.backends.http.secrets import check_query, masked
from cheops.backends.http.translation import ResponseIds
from cheops.client.agent import events_in
from cheops.config.command import CommandSettings
from cheops.config.pages import PagesConfig
from cheops.config.request_rules import SAFE_METHODS, SecretMembers
from cheops.config.service_credentials import AuthConfig, ClientConfig
from cheops.config.services import ReplicationConfig, ServiceConfig
from cheops.config.site import parse_site
from cheops.engine.events import (
    Effect,
    Fault,
    Load,
    Loaded,
    Outcome,
    PeerUp,
    Ran,
    Received,
    Result,
    Run,
    Save,
    Send,
    Tick,
)
from cheops.engine.settings import ResourceType, Settings
from cheops.engine.site import Site
from cheops.errors import CheopsError, ClientError
from cheops.gateway.client_connection import check_headers, check_raw_head, parse_headers, refuse_early
from cheops.gateway.headers import RequestHead
from cheops.gateway.interfaces import GatewayRequestError
from cheops.gateway.json_items import BodyError, ListNames, ListSplitter, checked
from cheops.gateway.pages import (
    link_to_next,
    next_in,
    position_of,
    signs_of_pages,
    unexplained_parameters,
    with_parameter,
)
from cheops.gateway.request import Listener, ListenerKind, find_service
from cheops.log.operation import Command, Origin
from cheops.matrix_file import parse_matrix
from cheops.peers import frames, heartbeat, links
from cheops.peers.client import decode_json
from cheops.peers.couchdb.documents import RefusedError, parse_document
from cheops.peers.couchdb.requests import CouchError, GzipReader
from cheops.peers.frames import FrameError, FrameKind, FrameReader
from cheops.peers.heartbeat import MeshError, SiteRecord
from cheops.peers.links import EnvelopeError
from cheops.peers.mesh import Mesh
from cheops.peers.settings import Now
from cheops.scope import BUILTIN, ScopeError, SiteInfo, Snapshot, parse, resolve
from cheops.security.principal import OPEN
from cheops.security.tokens import BadTokenError, Tokens
from cheops.store import codec, interface
from cheops.yaml_file import YamlFileError
from tests.security.fuzz import samples
from tests.security.fuzz.mutator import MAX_BYTES, mutated

Make = Callable[[Sequence[bytes], Sequence[bytes], Random, int], bytes]


@dataclass(frozen=True)
class Target:
    """`share` is its part of a campaign's inputs: what is slow or simple gets less."""

    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    allowed: tuple[type[Exception], ...]
    tokens: tuple[bytes, ...] = ()
    share: int = 10
    most_bytes: int = MAX_BYTES
    make: Make = mutated  # an input, from the samples and tokens


def _text(data: bytes) -> str:
    """As JSON and headers can bring it: with halves of surrogate pairs where the bytes are no UTF-8."""
    return data.decode("utf-8", "surrogateescape")


# -- texts of users ----------------------------------------------------------------------------------------

_SITES = Snapshot("here", {name: SiteInfo(name, frozenset({"image"})) for name in ("here", "paris", "lyon")})


def _scope(data: bytes) -> None:
    scope = parse(_text(data), BUILTIN)
    assert parse(str(scope), BUILTIN) == scope, "a scope's own spelling reads as another one"
    for service in (None, "image"):
        resolve(scope, service, _SITES, BUILTIN)


def _matrix(data: bytes) -> None:
    parse_matrix(_text(data), "matrix")


def _configuration(data: bytes) -> None:
    config = parse_site(_text(data), Path("/nowhere/at/all/site.yaml"))
    _ = config.warnings


def _command(data: bytes) -> None:
    line, id_, name = (*_text(data).split("\0"), "", "")[:3]
    for shell in (False, True):
        for allow in (("...",), ("redis-cli incrby * *", "kubectl apply ...", "rm /data/*", "printf ...")):
            settings = CommandSettings(allow=allow, shell=shell)
            try:
                made = invocation(line, settings, resource=id_, files={name: Path("/spool/f")} if name else {})
            except (CommandLineError, CommandNotAllowedError):
                continue
            if shell:
                assert made.argv[0] == "/bin/sh"
                continue
            assert "__ID__" in line or "__ID__" in id_ or "__ID__" not in " ".join(made.argv)


def _command_pattern(data: bytes) -> None:
    CommandSettings(allow=tuple(_text(data).split("\n")))


# -- what sites send ---------------------------------------------------------------------------------------


def _document(data: bytes) -> None:
    document = codec.decode(data)
    assert codec.encode(codec.decode(codec.encode(document))) == codec.encode(document)


def _message(data: bytes) -> None:
    codec.encode_message(codec.decode_message(data))


def _couch(data: bytes) -> None:
    try:
        raw = decode_json(data, object)
    except ValueError:
        return
    parse_document(raw)


def _document_id(data: bytes) -> None:
    text = _text(data)
    assert codec.id_of(codec.key_of_id(text)) == text


_HERE = Origin("here", "1")
_TYPES = Settings({"t": ResourceType("t", reset=Command("reset"))})


def _engine(data: bytes) -> None:
    """Messages, one a line, as a site that may speak sends them. What the engine wants kept can be kept, and
    what it sends can be read."""
    site, now_ms = Site(_HERE, _TYPES), 1_700_000_001_000
    for line in data.split(b"\n")[:20]:
        message = codec.decode_message(line)
        effects = site.step(Received("paris", message), now_ms)
        for load in [effect for effect in effects if isinstance(effect, Load)]:
            effects += site.step(Loaded(load.resource, ()), now_ms)
        for run in [effect for effect in effects if isinstance(effect, Run)]:
            ended = (Outcome(Result.OK),) * len(run.steps)
            effects += site.step(Ran(run.resource, run.n, ended), now_ms + 1)
        effects += site.step(PeerUp("paris", "3f2a"), now_ms + 2)
        effects += site.step(Tick(), now_ms + 60_000)
        _carried_out(effects)


def _carried_out(effects: list[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Save):
            for document in effect.documents:
                codec.encode(document)
        elif isinstance(effect, Send):
            codec.encode_message(effect.message)
        elif isinstance(effect, Fault):
            raise effect.error


def _heartbeat(data: bytes) -> None:
    own = SiteRecord("here", "1", "http://127.0.0.1:1")
    mesh = Mesh(own, {"paris": "http://127.0.0.1:2"}, Now(1_000.0, 1.7e12))
    answer, _ = mesh.received_probe(heartbeat.decode(data), Now(1_001.0, 1.7e12 + 1))
    heartbeat.decode(heartbeat.encode(answer))
    mesh.snapshot(Now(1_002.0, 1.7e12 + 2))
    heartbeat.decode_saved(heartbeat.encode(mesh.saved()))


def _frames(data: bytes) -> None:
    """What another agent sends through a channel."""
    for frame in FrameReader().feed(data):
        if frame.kind == FrameKind.REQUEST:
            frames.decode_opening(frame.payload)
        elif frame.kind == FrameKind.RESPONSE:
            frames.decode_answer(frame.payload)
        elif frame.kind == FrameKind.CREDIT:
            frames.decode_amount(frame.payload)
        else:
            frames.decode_reason(frame.payload)


def _unpacked(data: bytes) -> None:
    """Never further than the limit, whatever it is packed into."""
    unpacking, size = GzipReader(1_000_000), 0
    for start in range(0, len(data), 1_000):
        size += len(unpacking.feed(data[start : start + 1_000]))
    unpacking.finish()
    assert size <= 1_000_001


def _http_payload(data: bytes) -> None:
    request = request_of(Command(data.decode("utf-8", "replace")))
    assert request.base or not set("\r\n\0") & set(request.method + request.path + request.query + request.key)
    if not request.base:
        assert request.method not in SAFE_METHODS
        assert ".." not in request.path.split("/")
        check_rules(_MAPPED, request)
        check_place(_MAPPED, request, meta_id_of("image", "5"), None)


# -- what services and clients send ------------------------------------------------------------------------


@cache
def _index() -> Index:
    meta = meta_id_of("image", "5")
    return Index([Copy(meta, "image", "/images/{id}", "5", is_number=True)])


def _list(data: bytes) -> None:
    """The response of a part of a list over several sites, in pieces of several sizes."""
    for size in (1, 13, len(data) or 1):
        splitter = ListSplitter(ListNames(in_path=frozenset({"servers"})))
        for start in range(0, len(data), size):
            for item in splitter.feed(data[start : start + size]):
                checked(item)
        splitter.finish()
        config = PagesConfig(limit="limit", marker="marker", next=("$", "next"))
        signs_of_pages((), splitter.beside)
        next_in(config, (), splitter.beside, ("/servers", "limit=1"))


def _page_marker(data: bytes) -> None:
    text = data.decode("latin-1")  # as a head has it
    position_of(PagesConfig(limit="limit", marker="marker", next=("Link",)), with_parameter("", "marker", text))
    link_to_next((("Link", text),))
    unexplained_parameters(text)


def _to_meta(data: bytes) -> None:
    for size in (1 << 20, 7):  # as a whole, and in pieces
        translating = MetaIdTranslator(ResponseIds(_index(), "image", ReplicationConfig(), "/images"))
        for start in range(0, len(data), size):
            translating.feed(data[start : start + size])
        translating.finish()
        if len(data) > 2_000:
            return


def _to_local(data: bytes) -> None:
    translating = LocalIdTranslator(_index().local_of, Form.JSON)
    for start in range(0, len(data), 13):
        translating.feed(data[start : start + 13])
    translating.finish()


def _events(data: bytes) -> None:
    list(events_in(data.split(b"\n")))


def _api_body(data: bytes) -> None:
    for kind in (SubmitRequest, ChangeSites, ResolveRequest, LocalId):
        try:
            model = decode_body(data, kind)
        except (InvalidError, RequestError):
            continue
        if isinstance(model, SubmitRequest):
            operation_request("id", model, (), OPEN)
            check_names("id", model.type)


def _head(data: bytes) -> None:
    refuse_early(data[:100], 65_536)
    raw, _, _ = data.partition(b"\r\n\r\n")
    raw += b"\r\n\r\n"
    version = check_raw_head(raw)
    headers = parse_headers(raw)
    check_headers(headers, version)
    line = raw.decode("latin-1").split("\r\n")[0].split(" ")
    for way in ListenerKind:
        head = RequestHead(line[0], line[1], headers)
        try:
            find_service(head, Listener(way, "image"), {"image": "image"})
        except ClientError:
            continue


def _credentials(data: bytes) -> None:
    provider = CredentialProvider("image", AuthConfig(Path("/nowhere")), CommandRunner.__new__(CommandRunner))
    provider._parsed(data.decode("latin-1"))


_MAPPED = ServiceConfig("image", "http://a", replication=ReplicationConfig(client=ClientConfig(claim="sub")))
_CONTENT_TYPES = ("application/json", "", "application/x-www-form-urlencoded", "multipart/form-data", "a/xml", "a/b")


def _web_token(data: bytes) -> None:
    claimed_client(_MAPPED, "sub", (("Authorization", f"Bearer {data.decode('latin-1')}"),))


def _secrets(data: bytes) -> None:
    """What is kept of a response: to look again finds nothing more."""
    for kind in _CONTENT_TYPES:
        kept = masked(data, kind, SecretMembers())
        assert kept is None or kind != "application/json" or masked(kept, kind, SecretMembers()) == kept
    check_query(data.decode("latin-1"), SecretMembers())


_TOKENS = Tokens()


def _token(data: bytes) -> None:
    _TOKENS.with_secret(_text(data))


JSON_TOKENS = (b'"op"', b'"doc"', b'"v"', b"null", b"[]", b"{}", b"1", b"-1", b'""', b",", b":")
HTTP_TOKENS = (
    b"\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Host: a\r\n",
    b"Scope: a & b\r\n", b"HTTP/1.1", b"HTTP/0.9", b"HTTP/2.0", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"0\r\n\r\n",
    b"http://", b"http://[::1", b"http://a\xc2\xb2/", b"//x", b"CONNECT", b"Upgrade: h2c\r\n", b"X_Y: 1\r\n", b"Cheops-Hop: paris\r\n", b"ffffffffffffffff\r\n",
)  # fmt: skip
_YAML_TOKENS = (b": ", b"- ", b"\n  ", b"{", b"}", b"? ", b"| \n", b"> \n", b"!!binary ", b"!!int ", b"---\n", b"&a [*a]", b"types:", b"@", b"%YAML 9.9\n")  # fmt: skip
_SCOPE_TOKENS = (
    b"&",
    b"%",
    b";",
    b"(",
    b")",
    b"{",
    b"}",
    b":",
    b",",
    b"10ms",
    b"around(",
    b"strong(",
    b'"',
    b"site1",
    b"\\",
)

PURE: dict[str, Target] = {
    "scope": Target(_scope, samples.SCOPES, (ScopeError,), _SCOPE_TOKENS, 30),
    "matrix-json": Target(_matrix, samples.MATRICES_JSON, (YamlFileError,), JSON_TOKENS, 15),
    "matrix-yaml": Target(_matrix, samples.MATRICES_YAML, (YamlFileError,), _YAML_TOKENS, 15),
    "configuration": Target(_configuration, samples.CONFIGURATIONS, (ClientError,), _YAML_TOKENS, 20),
    "command": Target(_command, samples.COMMANDS, (), (b"__ID__", b"{f}", b"'", b'"', b"\\", b"\0"), 20, 2_000),
    "command-pattern": Target(_command_pattern, (b"redis-cli set * *\nls ...", b"a 'b c' *x*"), (ClientError,), (b"*", b"...", b"'"), 10, 2_000),
    "document": Target(_document, samples.DOCUMENTS, (interface.CodecError,), JSON_TOKENS, 60),
    "document-id": Target(_document_id, samples.IDS, (interface.CodecError,), (b"/", b"%2F", b"op/"), 10),
    "message": Target(_message, samples.ENCODED_MESSAGES, (interface.CodecError,), JSON_TOKENS, 50),
    "envelope": Target(links.unpack, samples.ENVELOPES, (EnvelopeError,), (*JSON_TOKENS, b"\x93", b"\x90", b"\xc4\x02{}", b"\xff"), 60),
    "channel-frames": Target(_frames, samples.FRAMES, (FrameError,), (b"\x01\x01", b"\x03\x00", b"\x00\x00\x00\x01", b"\xff\xff"), 30),
    "engine": Target(_engine, (*samples.ENCODED_MESSAGES, b"\n".join(samples.ENCODED_MESSAGES)), (interface.CodecError,), JSON_TOKENS, 60),
    "couch-document": Target(_couch, samples.COUCH, (RefusedError,), JSON_TOKENS, 30),
    "heartbeat": Target(_heartbeat, samples.HEARTBEATS, (MeshError,), JSON_TOKENS, 40),
    "gzip": Target(_unpacked, samples.GZIP, (CouchError,), (), 20),
    "http-payload": Target(_http_payload, samples.REQUESTS, (PayloadError, ClientError), JSON_TOKENS, 30),
    "http-answer-json": Target(_to_meta, samples.BODIES, (CheopsError,), JSON_TOKENS, 30),
    "http-body-json": Target(_to_local, (*samples.BODIES, meta_id_of("image", "5").encode()), (NoCopyError,), (meta_id_of("x").encode(),), 20),
    "list-json": Target(_list, samples.LISTS, (BodyError,), (*JSON_TOKENS, b'"servers":', b'"next":'), 30),
    "page-marker": Target(_page_marker, samples.PAGE_MARKERS, (ClientError,), (b"cheops1.", b"<", b'>; rel="next"', b"&", b"=", b"%"), 15),
    "event-stream": Target(_events, samples.EVENTS, (msgspec.DecodeError,), JSON_TOKENS, 15),
    "api-body": Target(_api_body, samples.API_BODIES, (ClientError,), JSON_TOKENS, 40),
    "gateway-head": Target(_head, samples.HEADS, (GatewayRequestError,), HTTP_TOKENS, 60),
    "credentials-file": Target(_credentials, samples.CREDENTIALS, (CredentialsError,), (b":", b"\n", b"\r"), 10),
    "web-token": Target(_web_token, samples.WEB_TOKENS, (ClientError,), (b".", b"=", b"-_"), 10),
    "http-secrets": Target(_secrets, samples.SECRETS, (ClientError,), (*JSON_TOKENS, b'"password":', b"password="), 20),
    "token": Target(_token, (b"cheops_" + b"a" * 43,), (BadTokenError,), (), 10),
}  # fmt: skip
