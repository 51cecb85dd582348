"""Well-formed inputs of every shape, from grammars, for Hypothesis; what is wrong with them is only what they say."""

import json
from typing import Any

import msgspec
from hypothesis import strategies as st

from cheops.peers import links
from cheops.store import codec
from tests.scope.strategies import scopes
from tests.store.plain import to_json
from tests.store.strategies import documents, messages

_words = st.text(max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_words, inner, max_size=4),
    max_leaves=12,
)


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def _record(*names: str) -> st.SearchStrategy[bytes]:
    """An object with these names, some of them, and any values."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, _json)).map(_dumped)


_tokens = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=8)
_values = st.text(st.characters(min_codepoint=9, max_codepoint=255), max_size=12)
_header_lines = st.lists(
    st.tuples(_tokens | st.sampled_from(["Host", "Content-Length", "Transfer-Encoding", "Scope"]), _values)
)


@st.composite
def _heads(draw: st.DrawFn) -> bytes:
    lines = [f"{draw(_tokens)} {draw(st.sampled_from(['/', '*', 'http://image/']))}{draw(_tokens)} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in draw(_header_lines)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + draw(st.binary(max_size=20))


_type_keys = (
    "matrix",
    "allow",
    "read",
    "show",
    "reset",
    "checkpoint",
    "on_error",
    "decompose",
    "timeout",
    "env",
    "shell",
    "limits",
    "user",
)
_site_keys = (
    "listen",
    "advertise",
    "peers",
    "services",
    "heartbeat",
    "limits",
    "gateway",
    "notify",
    "security",
    "data",
)


@st.composite
def _configurations(draw: st.DrawFn) -> bytes:
    kind = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(_type_keys, _json)))
    rest = draw(st.fixed_dictionaries({}, optional=dict.fromkeys(_site_keys, _json)))
    return _dumped({"site": "s", "types": {"t": kind}, **rest})


@st.composite
def _messages(draw: st.DrawFn) -> bytes:
    return b"\n".join(codec.encode_message(one) for one in draw(st.lists(messages(), min_size=1, max_size=2)))


_heartbeat_keys = (
    "incarnation",
    "revision",
    "beat",
    "sent_ms",
    "seen",
    "entries",
    "beats",
    "pairs",
    "members",
    "digests",
)
_matrix_keys = ("matrix", "ResolutionMatrix", "types")
_request_keys = ("method", "path", "query", "headers", "text", "base64", "item", "named", "key", "base")
_submit_keys = ("type", "command", "sites", "resource_type", "kind", "matrix")

# For targets of the table, under their names there.
GRAMMARS: dict[str, st.SearchStrategy[bytes]] = {
    "scope": scopes.map(str).map(str.encode),
    "matrix-json": _record(*_matrix_keys),
    "matrix-yaml": _record(*_matrix_keys),
    "configuration": _configurations(),
    "document": documents.map(codec.encode),
    "message": messages().map(codec.encode_message),
    "envelope": st.lists(messages(), max_size=2).map(lambda some: links.pack("paris", some)),
    "engine": _messages(),
    "couch-document": documents.map(lambda one: msgspec.json.encode({"_id": "x", **to_json(one)})),
    "heartbeat": _record("sender", *_heartbeat_keys),
    "http-payload": _record(*_request_keys),
    "http-answer-json": _json.map(_dumped),
    "http-body-json": _json.map(_dumped),
    "api-body": _record(*_submit_keys),
    "gateway-head": _heads(),
    "gateway": _heads(),
}
