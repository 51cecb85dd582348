"""Places of a request that rules refer to: headers, members of the query, of forms and of JSON, and XML elements.

Programs read some requests differently: which one counts of two members with one name, or of two headers; whether
`Key` is `key`; what is in a body that is compressed, or not UTF-8. Where a rule is about such a place, Cheops cannot
say what the service would change. Such a request is refused, `AmbiguousError`, rather than guessed at.
"""

import json
import re
from collections.abc import Iterable
from html import unescape
from urllib.parse import parse_qsl, quote

import msgspec

from cheops.backends.http.payload import Header, header, is_json, media_type, plain_name
from cheops.config.service_rules import MANY, Rule
from cheops.errors import ClientError
from cheops.text import printable, shortened

_FORM = "application/x-www-form-urlencoded"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_XML_ENCODING = re.compile(r"""<\?xml[^>]*\sencoding\s*=\s*["']([^"']*)""")
_UTF_8 = ("utf-8", "us-ascii", "ascii")


class AmbiguousError(ClientError):
    """Services would read the request in different ways, or nobody could find all that it is about."""

    def __init__(self, why: str, problem: str = "services differ in how they read this") -> None:
        super().__init__(f"{why}: {problem}, so the request is not replicated", status=422)


def text_in(rule: Rule, place: str, headers: tuple[Header, ...], query: str, body: bytes | None) -> str:
    """The value at a place of a request. Raises ClientError if there is none, AmbiguousError if there are two."""
    if place.startswith("$."):
        check_readable(body, headers)
        found = text_at(body or b"", tuple(place.split(".")[1:]))
    else:
        texts = _texts_at(place, headers, query, body)
        if len(set(texts) if place.startswith("xml:") else texts) > 1:
            raise AmbiguousError(f"'{rule}' is about {place} of the request, which is there {len(texts)} times")
        found = texts[0] if texts else ""
    if not found:
        raise ClientError(
            f"'{rule}' is about {place} of the request, and there is none, or it is no text or number"
            f"{_unread(place, headers)}: without it nobody can say what is changed, so the request is not replicated",
            status=422,
        )
    return found


def texts_in(place: str, headers: tuple[Header, ...], query: str, body: bytes | None) -> list[str]:
    """All values at a place of a request. `$.layers.digest` is that of each layer. Raises AmbiguousError."""
    if not place.startswith("$."):
        return _texts_at(place, headers, query, body)
    check_readable(body, headers)
    return [one for one in _values_at(body or b"", tuple(place.split(".")[1:])) if isinstance(one, str) and one]


def _texts_at(place: str, headers: tuple[Header, ...], query: str, body: bytes | None) -> list[str]:
    kind, _, name = place.partition(":")
    if kind == "header":
        return [text for given, text in headers if plain_name(given) == plain_name(name)]
    if kind == "query":
        return [text for given, text in parse_qsl(query, keep_blank_values=True) if given.lower() == name.lower()]
    if kind == "xml":
        check_readable(body, headers)
        check_xml(body or b"")
        return texts_in_xml(body or b"", name)
    check_readable(body, headers)
    is_form = media_type(header(headers, "content-type")) == _FORM
    members = parse_qsl((body or b"").decode("utf-8", "replace")) if is_form else []
    return [text for given, text in members if given == name]


def _unread(place: str, headers: tuple[Header, ...]) -> str:
    """That a body is not looked into, if that is why a member is not found."""
    found = media_type(header(headers, "content-type"))
    is_read = not place.startswith("$.") or not found or is_json(found)
    return "" if is_read else f" (the body is '{printable(shortened(found))}', and members are read from JSON only)"


def quoted(text: str, *, is_path: bool = False) -> str:
    """A text as a part of a path, or as several. Raises ClientError for what would lead to another path."""
    parts = text.strip("/").split("/") if is_path else [text]
    if any(part in (".", "..") for part in parts) or (is_path and len(parts) > 1 and "" in parts):
        raise ClientError(
            f"'{printable(shortened(text))}' is not replicated as the name of something: a part of it is empty, or is "
            "'.' or '..'",
            status=422,
        )
    return "/".join(quote(part, safe="") for part in parts)


def spelled(place: str, text: str) -> str:
    """The value of a place as a template of a path has it: with `**` it may be several parts."""
    return quoted(text, is_path=place.endswith(MANY))


# -- bodies ------------------------------------------------------------------------------------------------------


def check_readable(body: bytes | None, headers: Iterable[Header]) -> None:
    """Raises AmbiguousError for a body that is compressed: a service may look into it, and Cheops does not."""
    encodings = [value.strip().lower() for name, value in headers if plain_name(name) == "content-encoding"]
    if body and any(one != "identity" for one in encodings):
        shown = printable(shortened(", ".join(encodings)))
        raise AmbiguousError(f"a rule is about the body of this request, which is encoded ('{shown}')")


def check_xml(body: bytes) -> None:
    """Raises AmbiguousError for XML whose texts cannot be found without a complete parser."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AmbiguousError("a rule is about XML in the body of this request, which is not UTF-8") from None
    encoding = _XML_ENCODING.search(text)
    if "\x00" in text or (encoding and encoding[1].lower() not in _UTF_8):
        raise AmbiguousError("a rule is about XML in the body of this request, which is not UTF-8")
    if "<!" in text:
        raise AmbiguousError(
            "a rule is about XML in the body of this request, which has '<!' in it (CDATA, a comment or a DOCTYPE)"
        )


def texts_in_xml(body: bytes, element: str) -> list[str]:
    """The texts of all elements with a name."""
    found = re.findall(rf"<(?:\w+:)?{re.escape(element)}(?:\s[^<>]*)?>([^<]+)<", body.decode("utf-8", "replace"))
    return [unescape(text.strip()) for text in found]


def text_at(body: bytes, names: tuple[str, ...]) -> str:
    """The text or number at a place of a JSON body; empty if there is none. Raises AmbiguousError."""
    found = value_at(body, names)
    check_members(body, names)
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""


def value_at(body: bytes, names: tuple[str, ...]) -> object:
    """What is at a place of a JSON body; None if there is none."""
    try:
        found: object = msgspec.json.decode(body)
    except _UNREADABLE:
        return None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def has_member(body: bytes, names: tuple[str, ...], headers: Iterable[Header]) -> bool:
    """Whether a JSON body has a member, also if that is null; an empty text counts as none. Raises AmbiguousError."""
    check_readable(body, headers)
    if body.strip() and not _is_read(body):
        raise AmbiguousError(f"a rule is about ${_written(names)}, and the body of this request is no JSON in UTF-8")
    check_members(body, names)
    above = value_at(body, names[:-1])
    return isinstance(above, dict) and above.get(names[-1], "") != ""


def _is_read(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except _UNREADABLE:
        return False
    return True


def _values_at(body: bytes, names: tuple[str, ...]) -> list[object]:
    if not body.strip():
        return []
    try:
        found: list[object] = [msgspec.json.decode(body)]
    except _UNREADABLE:
        raise AmbiguousError(
            f"a rule is about ${_written(names)}, and the body of this request is no JSON in UTF-8"
        ) from None
    check_members(body, names)
    for name in names:
        found = [one for value in found for one in (value if isinstance(value, list) else [value])]
        found = [value[name] for value in found if isinstance(value, dict) and name in value]
    return found


def check_members(body: bytes, names: tuple[str, ...]) -> None:
    """Raises AmbiguousError if a JSON body has one of the members on the way to a place twice, or in another case."""
    text = body.decode("utf-8", "replace")
    folded = text.casefold()
    if "\\" not in text and all(folded.count(name.casefold()) == text.count(name) <= 1 for name in names):
        return  # no name can be there twice
    try:
        found: list[object] = [json.loads(body, object_pairs_hook=_Members, parse_int=str, parse_float=str)]
    except (ValueError, RecursionError):
        if _is_read(body):
            raise AmbiguousError(
                f"a rule is about ${_written(names)}, and the body of this request is nested too deeply"
            ) from None
        return  # it has no members
    for name in names:
        objects = [one for value in found for one in (value if type(value) is list else [value])]
        found = []
        for one in (each for each in objects if isinstance(each, _Members)):
            alike = [(given, value) for given, value in one if given.casefold() == name.casefold()]
            if len(alike) > 1 or any(given != name for given, _ in alike):
                shown = printable(shortened(" and ".join(f"'{given}'" for given, _ in alike)))
                raise AmbiguousError(f"a rule is about ${_written(names)}, and the body of this request has {shown}")
            found += [value for _, value in alike]


def _written(names: tuple[str, ...]) -> str:
    return "".join(f".{name}" for name in names)


class _Members(list[tuple[str, object]]):
    """The members of a JSON object, all of them."""
