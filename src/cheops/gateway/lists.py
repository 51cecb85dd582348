"""What the parts of a read over several sites answered, and what becomes of their items. No I/O of its own.

`gather` asks the parts, and decides with this module: which of them are missing, which members stand beside the list,
and which items are copies of one replicant.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from cheops.errors import ClientError
from cheops.gateway.headers import Headers, RequestHead, encode_name, every, first, requested_upgrade, without
from cheops.gateway.interfaces import Replication
from cheops.gateway.json_items import BodyError, checked
from cheops.text import in_words, printable, shortened

SITES_MEMBER = "cheops_sites"  # of an item, with `Cheops-Annotate: site`
PARTS_MEMBER = "cheops_parts"  # of a list that is an object: what differs from site to site
MAX_REPLICANTS = 500_000  # of one list: each costs some 100 bytes until the list is complete

_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)
_WAITS = ("first", "quorum", "all")
# What a client says about the whole; the parts must not apply it to themselves.
_OF_WHOLE = (
    *("Accept-Encoding", "Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"),
    *("Cheops-Wait", "Cheops-Annotate", "Cheops-Dry-Run", "Prefer", "TE"),
)
MAX_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants of a read over several sites."""

    wait_s: float | None  # None: as long as usual
    is_all: bool  # nothing, unless all parts answered
    is_annotated: bool


def wish_of(head: RequestHead) -> Wish:
    """Raises ClientError."""
    wait = (first(head, "Cheops-Wait") or "").strip().lower()
    if wait and wait not in _WAITS:
        raise ClientError(f"Cheops-Wait is one of {', '.join(_WAITS)}, not '{_shown(wait)}'")
    annotate = (first(head, "Cheops-Annotate") or "").strip().lower()
    if annotate not in ("", "site"):
        raise ClientError(f"Cheops-Annotate can only be 'site', not '{_shown(annotate)}'")
    found = _WAIT.search(", ".join(every(head, "Prefer")))
    wait_s = min(float(found[1]), MAX_WAIT_S) if found else None
    return Wish(wait_s, wait == "all", annotate == "site")


def check_readable(head: RequestHead, service: str, sites: Sequence[str], body_size: int | None) -> None:
    """Raises ClientError for a read that cannot go to several sites."""
    if head.method not in ("GET", "HEAD"):
        raise ClientError(
            f"{head.method} cannot be sent to several sites (%): only GET and HEAD can; name one site in the scope, "
            f"such as {{{service}: {sites[0]}}}",
            status=501,
        )
    if requested_upgrade(head.headers):
        raise ClientError(
            "a connection that switches to another protocol goes to one site: name one in the scope, such as "
            f"{{{service}: {sites[0]}}}",
            status=422,
        )
    if body_size != 0:
        raise ClientError("a GET with a body cannot be sent to several sites (%)", status=422)


def part_headers(headers: Headers) -> Headers:
    """The headers of a request for one part. A compressed list could not be taken apart, and a part of a document, or
    none because it is unchanged, could not be put together."""
    kept = without(headers, *_OF_WHOLE)
    prefer = ", ".join(value for name, value in headers if name.lower() == "prefer")
    prefer = _WAIT.sub("", prefer).strip(" ,;")
    return (*kept, ("Accept-Encoding", "identity"), *([("Prefer", prefer)] if prefer else []))


# -- what the parts answered ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartStatus:
    """How a part answered: with the status of its service, or with what stands for it if there was none."""

    site: str
    status: int
    why: str = ""  # it has no usable response

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_unknown(self) -> bool:
        """Whether it says nothing about what is there."""
        return bool(self.why) or self.status >= 500

    @property
    def text(self) -> str:
        return f"{self.site} ({self.why or self.status})"


def parts_header(statuses: Iterable[PartStatus]) -> str:
    return ", ".join(f"{encode_name(one.site)}; status={one.status}" for one in statuses)


def missing(statuses: Iterable[PartStatus], *, for_document: bool) -> list[PartStatus]:
    """The parts without a response that counts. About a single document, 404 is an answer."""
    return [one for one in statuses if not one.is_good and not (for_document and one.status == 404 and not one.why)]


def words_for(statuses: Iterable[PartStatus]) -> str:
    return in_words([one.text for one in statuses])


def media_type(headers: Headers) -> str:
    value = first(RequestHead("", "", headers), "Content-Type") or ""
    return value.partition(";")[0].strip().lower()


def is_json(headers: Headers) -> bool:
    type_ = media_type(headers)
    return type_ in ("application/json", "text/json") or type_.endswith("+json")


def accepts_multipart(head: RequestHead) -> bool:
    """Whether the client says so itself: `*/*` is what clients send without a thought."""
    offers = (part.partition(";")[0].strip().lower() for value in every(head, "Accept") for part in value.split(","))
    return any(one in ("multipart/mixed", "multipart/*") for one in offers)


_CORS = ("access-control-allow-origin", "access-control-allow-credentials", "vary")


def common_headers(of_parts: Sequence[Headers]) -> Headers:
    """What the response to the client takes from those of the parts. A page of another origin may read the whole only
    if every service allows it."""
    type_ = first(RequestHead("", "", of_parts[0]), "Content-Type")
    kept = [("Content-Type", type_)] if type_ else []
    for name in _CORS:
        values = {tuple(every(RequestHead("", "", headers), name)) for headers in of_parts}
        if len(values) == 1:
            kept += [(name.title(), value) for value in values.pop()]
    return tuple(kept)


def merged_members(by_site: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
    """What stands beside the list: the members that are the same at all sites, and the others by site."""
    merged: dict[str, Any] = {}
    different: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for members in by_site.values() for name in members):
        values = {site: members[name] for site, members in by_site.items() if name in members}
        decoded = [msgspec.json.decode(value) for value in values.values()]
        if len(values) == len(by_site) and all(one == decoded[0] for one in decoded):
            merged[name] = msgspec.Raw(next(iter(values.values())))
        else:
            different[name] = {site: msgspec.Raw(value) for site, value in values.items()}
    return {**merged, **({PARTS_MEMBER: different} if different else {})}


# -- items ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """The replicants that were listed so far, each with the part that listed it. A page that is asked for again is the
    same again: only what an earlier part has listed is left out."""

    parts: dict[int, int] = field(default_factory=dict)

    def is_new(self, meta_id: str, part: int) -> bool:
        key = int.from_bytes(blake2b(meta_id.encode(), digest_size=8).digest())
        if len(self.parts) >= MAX_REPLICANTS and key not in self.parts:
            raise BodyError(f"the list has more than {MAX_REPLICANTS:,} replicated items")
        return self.parts.setdefault(key, part) >= part

    def forget(self, part: int) -> None:
        """A part is left out after all: what it has listed, a later one may list."""
        for key in [key for key, found in self.parts.items() if found == part]:
            del self.parts[key]


class Folder:
    """Takes the items of all parts, and gives each once."""

    def __init__(  # noqa: PLR0913 - what an item may depend on
        self,
        service: str,
        path: str,
        id_: tuple[str, ...],
        replicants: Replication | None,
        seen: Seen,
        *,
        annotates: bool,
    ) -> None:
        self._service = service
        self._collection = path.rstrip("/")
        self._id = id_ or ("id",)
        self._replicants = replicants
        self._seen = seen
        self._annotates = annotates
        self.last_id: str | None = None

    async def take(self, item: bytes, part: int, site: str) -> bytes | None:
        """The item as the client gets it; None if an earlier part has listed it. Raises BodyError."""
        members = checked(item)
        self.last_id = _text(_inner(members, self._id[-1:]) or _inner(members, self._id)) if members else _text(item)
        meta_id = await self._replicant(members, site)
        if meta_id and not self._seen.is_new(meta_id, part):
            return None
        if not self._annotates or item[:1] != b"{":
            return item
        sites: tuple[str, ...] = ()
        if meta_id and self._replicants:
            sites = await self._replicants.replicant_sites(meta_id)
        return _annotated(item, members, sites or (site,))

    async def _replicant(self, members: Mapping[str, msgspec.Raw], site: str) -> str | None:
        if self._replicants is None:
            return None
        names = (self.last_id, _text(members.get("name")), _text(_inner(members, ("metadata", "name"))))
        for place, name in enumerate(names):
            found = self._replicants.replicant_of(self._service, self._collection, name) if name else None
            if found is None:
                continue
            meta_id, is_named = found
            if not is_named and place == 0:  # a name may look like a meta-id
                return meta_id
            # What has the same name at a site that is not one of the replicant's is something else.
            if is_named and site in await self._replicants.replicant_sites(meta_id):
                return meta_id
        return None


def _inner(members: Mapping[str, msgspec.Raw], names: Sequence[str]) -> msgspec.Raw | None:
    value = members.get(names[0])
    for name in names[1:]:
        inner = checked(bytes(value)) if value is not None else {}
        value = inner.get(name)
    return value


def _text(raw: bytes | msgspec.Raw | None) -> str | None:
    """A string or a number as a text."""
    value = bytes(raw) if raw is not None else b""
    if value[:1] == b'"':
        return msgspec.json.decode(value, type=str)
    return value.decode() if value[:1].isdigit() else None


def _annotated(item: bytes, members: Mapping[str, msgspec.Raw], sites: Sequence[str]) -> bytes:
    if SITES_MEMBER in members:  # the service says so, which is not for it to say
        item = msgspec.json.encode({name: value for name, value in members.items() if name != SITES_MEMBER})
        members = {name: value for name, value in members.items() if name != SITES_MEMBER}
    comma = b"," if members else b""
    return b'%b%b"%b":%b}' % (item[:-1], comma, SITES_MEMBER.encode(), msgspec.json.encode(list(sites)))


def _shown(text: str) -> str:
    return printable(shortened(text))
