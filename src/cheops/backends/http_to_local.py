"""From meta-ids to the local ids of a site, in what goes to its service.

A meta-id is unmistakable, so it is replaced wherever it stands, byte by byte: what surrounds it (spacing, the
order of names, the digits of numbers) stays as it was sent, and a body of any size passes through in pieces.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias
from urllib.parse import quote

import msgspec

from cheops.backends.http_ids import META_ID, META_ID_BYTES
from cheops.errors import CheopsError

_HOLD = 128  # bytes kept back, so that an id that two pieces share, and what follows it, are seen as a whole


class Local(NamedTuple):
    """An id as a site's service knows it. A number is written without quotes in JSON."""

    id: str
    is_number: bool = False


LocalOf: TypeAlias = Callable[[str], Local | None]


class NotHereError(CheopsError):
    """A request speaks of a replicant that this site has no copy of, or not yet."""

    status = 409
    definite = False

    def __init__(self, meta_id: str) -> None:
        super().__init__(
            f"{meta_id} is a replicated resource that this site has no copy of, or not yet; see "
            f"'cheops describe replicant {meta_id}' at the sites that have it"
        )
        self.meta_id = meta_id


class Form(Enum):
    """How an id is written where it stands."""

    JSON = "json"
    URL = "url"  # in a path, a query, or a body of a form: percent-encoded
    PLAIN = "plain"  # in a header


def text_to_local(text: str, local_of: LocalOf, form: Form) -> str:
    """A path, a query or a header with local ids; raises NotHereError."""
    return META_ID.sub(lambda found: _written(_known(found[0], local_of), form), text)


class ToLocal:
    """A body on its way to the service, in pieces. Raises NotHereError."""

    def __init__(self, local_of: LocalOf, form: Form) -> None:
        self._local_of = local_of
        self._form = form
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        return self._translated(self._held + piece, keep=_HOLD)

    def finish(self) -> bytes:
        return self._translated(self._held, keep=0)

    def _translated(self, data: bytes, keep: int) -> bytes:
        end, done, out = max(len(data) - keep, 0), 0, []
        for found in META_ID_BYTES.finditer(data):
            if keep and found.start() >= end:
                break
            start, stop = found.span()
            local = _known(found[0].decode("ascii"), self._local_of)
            if self._form is Form.JSON and local.is_number and _is_whole_value(data, start, stop):
                out += [data[done : start - 1], local.id.encode()]
                done = stop + 1
            else:
                out += [data[done:start], _written(local, self._form).encode()]
                done = stop
        cut = max(end, done)
        out.append(data[done:cut])
        self._held = data[cut:]
        return b"".join(out)


def to_local(body: bytes, local_of: LocalOf, form: Form) -> bytes:
    """A body as a whole."""
    translating = ToLocal(local_of, form)
    return translating.feed(body) + translating.finish()


def _known(meta_id: str, local_of: LocalOf) -> Local:
    local = local_of(meta_id.lower())
    if local is None:
        raise NotHereError(meta_id.lower())
    return local


def _written(local: Local, form: Form) -> str:
    match form:
        case Form.JSON:
            return msgspec.json.encode(local.id).decode()[1:-1]
        case Form.URL:
            return quote(local.id, safe="")
        case Form.PLAIN:
            return local.id


def _is_whole_value(data: bytes, start: int, stop: int) -> bool:
    """Whether an id is all of a JSON string, which is not the name of a member."""
    if data[start - 1 : start] != b'"' or data[stop : stop + 1] != b'"':
        return False
    return not data[stop + 1 :].lstrip(b" \t\r\n").startswith(b":")
