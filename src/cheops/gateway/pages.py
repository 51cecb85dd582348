"""Pages of a list over several sites: where the next one begins, and how services say that. Pure.

Each part is read to its end before the next one begins. A client follows `next`, whose query has a marker of Cheops:
it holds the part, and the query with which that site's own service gives its next page. So any kind of paging that a
service has passes through, as `services.NAME.pages` describes it. Clients can write markers themselves: a marker says
nothing that a client could not ask for anyway.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote_plus, urlsplit

import msgspec

from cheops.config.pages import LINK, PagesConfig
from cheops.errors import ClientError
from cheops.gateway.headers import Headers
from cheops.gateway.json_items import BodyError
from cheops.text import listed, printable, shortened

_MARK = "cheops1."
_MAX_MARKER_CHARACTERS = 16 * 1024
_MAX_QUERY_CHARACTERS = 8 * 1024
_MAX_PARTS = 8_192
_LINK = re.compile(r"<([^>]*)>((?:\s*;\s*[\w!#$&+.^`|~*-]+\s*(?:=\s*(?:\"[^\"]*\"|[^\s;,\"]*))?)*)")
_IS_NEXT = re.compile(r";\s*rel\s*=\s*\"?(?:[^\"]*\s)?next(?:\s[^\"]*)?\"?\s*(?:;|$)", re.IGNORECASE)

# What usually asks for a part of a list, and what usually says that there is more.
PAGING_PARAMETERS = frozenset((
    "limit", "marker", "page", "per_page", "perpage", "page_size", "pagesize", "page_number", "page_token", "pagetoken",
    "offset", "cursor", "continue", "start", "after", "before", "max-keys", "maxresults", "max_results", "top", "$top",
    "skip", "$skip", "_page", "_limit", "_start", "_per_page", "page[number]", "page[size]", "page[cursor]",
))  # fmt: skip
_NEXT_MEMBERS = frozenset((
    "next", "next_page", "nextpage", "next_url", "next_link", "nextlink", "@odata.nextlink", "next_page_token",
    "nextpagetoken", "next_cursor", "nextcursor", "next_marker", "nextmarker", "continue", "cursor", "has_more",
    "hasmore", "is_truncated", "istruncated", "truncated", "nexttoken", "next_token",
))  # fmt: skip
# Members that lead to other pages of one site only.
LINK_MEMBERS = frozenset(("previous", "prev", "first", "last", "self"))


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the next page begins."""

    parts: tuple[tuple[str, ...], ...]  # the sites of each part, in the order of the list
    part: int
    query: str | None = None  # for the site's next page; None: its first one
    site: str = ""  # which of the part's sites gave the pages before
    seen: str = ""  # names what was listed before, at the agent
    missing: tuple[tuple[str, int], ...] = ()  # parts that are left out, and why: site and status
    style: str = ""  # how the service writes what comes next: `url`, `token` or `links`


def written(position: Position) -> str:
    return _MARK + base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read(text: str) -> Position:
    """Raises ClientError for what is not a marker of Cheops."""
    if not text.startswith(_MARK) or len(text) > _MAX_MARKER_CHARACTERS:
        raise ClientError(
            f"'{printable(shortened(text))}' does not say at which site the page begins. Begin without it, and follow "
            "the 'next' link of each page"
        )
    encoded = text.removeprefix(_MARK)
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(data, type=Position)
    except (binascii.Error, ValueError, msgspec.MsgspecError, RecursionError):
        raise ClientError("the marker of the page was changed on its way: begin the list again") from None
    is_query = position.query is None or (
        len(position.query) <= _MAX_QUERY_CHARACTERS and re.fullmatch(r"[\x21-\x7e]*", position.query)
    )
    is_part = 0 <= position.part < len(position.parts) <= _MAX_PARTS and all(position.parts)
    is_part = is_part and (position.query is None or position.site in position.parts[position.part])
    if not (is_query and is_part and "#" not in (position.query or "")):
        raise ClientError("the marker of the page was changed on its way: begin the list again")
    return position


def check_sites(position: Position, parts: Sequence[Sequence[str]]) -> None:
    """Raises ClientError if a marker belongs to a list over other sites."""
    if {frozenset(part) for part in position.parts} != {frozenset(part) for part in parts}:
        sites = " % ".join(" & ".join(part) for part in position.parts)
        raise ClientError(
            f"the marker of the page is of a list over {printable(shortened(sites))}: send the same scope, or begin "
            "the list again"
        )


# -- queries -------------------------------------------------------------------------------------------------


def parameter(query: str, name: str) -> str | None:
    """The value of the first parameter with a name."""
    for one in query.split("&"):
        found, _, value = one.partition("=")
        if one and unquote_plus(found) == name:
            return unquote_plus(value)
    return None


def with_parameter(query: str, name: str, value: str | None) -> str:
    """The query with this value (None: without the parameter); the others stay as they are written."""
    kept = [one for one in query.split("&") if one and unquote_plus(one.partition("=")[0]) != name]
    return "&".join(kept if value is None else [*kept, f"{quote(name, safe='$[]')}={quote(value, safe='')}"])


def unexplained_parameters(query: str) -> list[str]:
    names = (unquote_plus(one.partition("=")[0]) for one in query.split("&") if one)
    return [name for name in dict.fromkeys(names) if name.lower() in PAGING_PARAMETERS]


def limit_of(config: PagesConfig, query: str) -> int | None:
    """How many items the client wants on a page; None if it does not say."""
    text = (parameter(query, config.limit) if config.limit else None) or ""
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def position_of(config: PagesConfig, query: str) -> Position | None:
    """Where a client wants the page to begin; None: at the beginning. Raises ClientError."""
    value = parameter(query, config.marker or config.page) if config.is_paged else None
    if not value or (config.page and value in ("0", "1")):
        return None
    return read(value)


# -- what a response says ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Next:
    """What comes after a page of one site: the query of the next request, and how the service writes it."""

    query: str
    style: str = ""


def link_to_next(headers: Headers) -> str | None:
    """The URL of `Link: <…>; rel=next`."""
    for name, value in headers:
        if name.lower() == LINK.lower():
            for found in _LINK.finditer(value):
                if _IS_NEXT.search(found[2]):
                    return found[1]
    return None


def signs_of_pages(headers: Headers, beside: Mapping[str, bytes]) -> str | None:
    """What shows that a response is one page of several, in words; None if nothing does."""
    if link_to_next(headers) is not None:
        return "the header Link with rel=next"
    return _sign_in({name: msgspec.json.decode(value) for name, value in beside.items()}, "$")


def _sign_in(members: Mapping[str, Any], place: str) -> str | None:
    for name, value in members.items():
        where = f"{place}.{printable(shortened(name))}"
        if name.lower() in _NEXT_MEMBERS and value not in (None, "", False, 0, [], {}):
            return where
        if isinstance(value, list) and any(_is_next(one) for one in value):
            return where
        if isinstance(value, dict) and place == "$" and (found := _sign_in(value, where)):
            return found
    return None


def _is_next(link: object) -> bool:
    return isinstance(link, dict) and link.get("rel") == "next"


def next_in(config: PagesConfig, headers: Headers, beside: Mapping[str, bytes], target: tuple[str, str]) -> Next | None:
    """What comes next, where the configuration says that a response says so. `target` is the path and the query of the
    request. Raises BodyError."""
    if config.next == (LINK,):
        url = link_to_next(headers)
        return None if url is None else Next(_query_of(url, target[0]), "url")
    first, *names = config.next[1:]
    value = msgspec.json.decode(beside[first]) if first in beside else None
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    style = ""
    if isinstance(value, list):
        style, value = "links", next((one.get("href") for one in value if _is_next(one)), None)
    elif isinstance(value, dict):
        value = value.get("href")
    if value is None or value in ("", False):
        return None
    if not isinstance(value, str):
        raise BodyError(f"{'.'.join(config.next)} is neither a link nor a text")
    if style != "links" and "/" not in value and "?" not in value:
        return Next(with_parameter(target[1], config.marker or config.page, value), "token")
    return Next(_query_of(value, target[0]), style or "url")


def _query_of(url: str, path: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BodyError(f"its next page is no URL: {printable(shortened(url))}") from None
    if parts.path and not parts.path.rstrip("/").endswith(path.rstrip("/")):
        raise BodyError(f"its next page has another path: {printable(shortened(parts.path))}")
    if not re.fullmatch(rf"[\x21-\x7e]{{1,{_MAX_QUERY_CHARACTERS}}}", parts.query):
        raise BodyError(f"its next page has no query that could be sent: {printable(shortened(url))}")
    return parts.query


def after_page(config: PagesConfig, query: str, count: int, last_id: str | None) -> Next | None:
    """What comes after a page of a service that does not say so itself: another page, until one is empty. One that is
    not full may still not be the last: a service may give fewer items than it is asked for."""
    if count == 0:
        return None
    if config.page:
        number = parameter(query, config.page) or "1"
        if not re.fullmatch(r"[0-9]{1,9}", number):
            raise BodyError(f"the number of its page is '{printable(shortened(number))}'")
        return Next(with_parameter(query, config.page, str(int(number) + 1)))
    if last_id is None:
        raise BodyError("the last item of a page has no id, so the next page cannot be asked for")
    return Next(with_parameter(query, config.marker, last_id))


# -- what the client receives --------------------------------------------------------------------------------


def link_header(path: str, query: str) -> str:
    return f'<{path}?{query}>; rel="next"'


def next_member(config: PagesConfig, style: str, path: str, query: str) -> tuple[str, Any] | None:
    """The member that leads to the next page, in the place and the form that the service has for it."""
    if len(config.next) < 2:
        return None
    first, *names = config.next[1:]
    url, last = f"{path}?{query}", config.next[-1].lower()
    value: Any = url
    if style == "links" or (not style and last.endswith("links")):
        value = [{"rel": "next", "href": url}]
    elif style == "token" or (not style and last.endswith(("token", "marker", "cursor", "continue"))):
        value = parameter(query, config.marker or config.page)
    for name in reversed(names):
        value = {name: value}
    return first, value


def refuse_unexplained(service: str, names: list[str]) -> None:
    """Raises ClientError for a request whose paging nothing explains."""
    if names:
        raise ClientError(
            f"{listed(names)} in the query asks for a part of a list, and it is not known how {service} pages its "
            f"lists. {setting_to_add(service)}",
            status=422,
        )


def setting_to_add(service: str) -> str:
    return (
        f"Set services.{service}.pages, such as {{limit: limit, marker: marker, next: $.next}}, or none if it never "
        "pages (docs/gateway.md#pages)"
    )
