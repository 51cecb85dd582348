"""What a request is about, by the rules of its service: what it does, to which resource, and to which part of it.

The rules are data (cheops.config.service_rules); this module applies them to one request. Every site does so again
before it runs an operation: its own rules must say the same.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from urllib.parse import parse_qsl, quote

import msgspec

from cheops.backends.http.ids import meta_id_of
from cheops.backends.http.paths import canonical, joined, last_segment, split_target, trimmed
from cheops.backends.http.payload import Header, Request, header, media_type, part_name
from cheops.config.service_rules import SERVICE, Rule, RuleKind, ServiceRules, Success, fill_in, references
from cheops.config.services import CREATE_NAMED, ServiceConfig
from cheops.errors import ClientError
from cheops.gateway.headers import ForwardingInfo, RequestHead
from cheops.gateway.interfaces import IncomingRequest
from cheops.text import in_words, printable, shortened

MAX_BODY_BYTES = 4 * 1024 * 1024  # of a request whose body says what it is about
WHOLE = "/"  # the resource that is a whole service
_FORM = "application/x-www-form-urlencoded"
_NO_OPERATIONS = (RuleKind.READ, RuleKind.NEVER, RuleKind.SESSION)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a request does, and to what. `item` is the path by which its resource is known at every site; empty if the
    service gives it an id."""

    kind: RuleKind
    item: str = ""
    part: str = ""
    rule: Rule | None = None
    after: tuple[str, ...] = ()  # the paths of other resources that must be there first

    def meta_id(self, service: str) -> str:
        return meta_id_of("path", service, self.item)

    @property
    def type(self) -> str:
        """What the matrix calls it."""
        if self.kind is RuleKind.CREATE and self.item:
            return CREATE_NAMED
        return part_name(self.kind.value, self.part) if self.part else self.kind.value

    @property
    def needs_a_copy(self) -> bool:
        """Whether it changes what must be there already."""
        return self.item != WHOLE and (bool(self.part) or self.kind in (RuleKind.PATCH, RuleKind.DELETE))

    @property
    def is_deletion(self) -> bool:
        """Whether nothing is left of the resource."""
        return self.kind is RuleKind.DELETE and not self.part


def rule_for(
    rules: ServiceRules, method: str, target: str, headers: tuple[Header, ...] = ()
) -> tuple[Rule, dict[str, str]] | None:
    path, query = split_target(target)
    return rules.first(method, canonical(path), query, headers)


def needs_body(rule: Rule) -> bool:
    """Whether the body of a request says what it is about, or what must be there first."""
    templates = (rule.of, *rule.after)
    return bool(rule.name) or any(
        one.startswith(("$.", "form:", "xml:")) for text in templates for one in references(text)
    )


def meaning_of(
    rules: ServiceRules, method: str, target: str, headers: tuple[Header, ...], body: bytes | None
) -> Meaning | None:
    """What the rules say about a request; None if they say nothing. Raises ClientError if the request lacks what its
    rule refers to. `body` is needed only if `needs_body`."""
    path, query = split_target(target)
    found = rules.first(method, canonical(path), query, headers)
    if found is None:
        return None
    rule, values = found
    if rule.kind in _NO_OPERATIONS:
        return Meaning(rule.kind, rule=rule)
    part = fill_in(rule.part, values)
    if rule.of == SERVICE:
        return Meaning(rule.kind, WHOLE, part, rule)
    if rule.name:
        name = _member(rule, "$." + ".".join(rule.name), headers, query, body)
        item = f"{trimmed(canonical(path)).rstrip('/')}/{quote(name, safe='')}"
    elif rule.of:
        members = {one: _member(rule, one, headers, query, body) for one in references(rule.of) if one not in values}
        spelled = {
            **{one: _spelled(rule, one, values) for one in values},
            **{k: quote(v, safe="") for k, v in members.items()},
        }
        item = trimmed(canonical(fill_in(rule.of, spelled)))
    else:
        item = "" if rule.kind is RuleKind.CREATE else trimmed(canonical(path))
    if not rules.is_whole:
        return Meaning(rule.kind, item, part, rule, _needed(rule, values, headers, query, body))
    # Everything that the service does has one order, so each of its resources is a part of one.
    within = "/".join(one for one in (item.strip("/") or trimmed(path).strip("/"), part) if one)
    return Meaning(rule.kind, WHOLE, within, rule)


def _needed(
    rule: Rule, values: dict[str, str], headers: tuple[Header, ...], query: str, body: bytes | None
) -> tuple[str, ...]:
    """The paths of the resources that a rule says must be there before its request runs."""
    found = (paths_at(rule, template, values, headers, query, body) for template in rule.after)
    return tuple(dict.fromkeys(path for paths in found for path in paths))


def _spelled(rule: Rule, variable: str, values: dict[str, str]) -> str:
    """The value of a variable as a part of a path."""
    return values[variable] if variable in rule.in_path else quote(values[variable], safe="/")


def paths_at(  # noqa: PLR0913, PLR0917 - a request's parts
    rule: Rule, template: str, values: dict[str, str], headers: tuple[Header, ...], query: str, body: bytes | None
) -> list[str]:
    """All paths that a template stands for in a request: a place in it may have several values, or none."""
    paths = [template]
    for one in references(template):
        texts = [_spelled(rule, one, values)] if one in values else _all_at(one, headers, query, body)
        paths = [path.replace(f"{{{one}}}", text) for path in paths for text in texts]
    return [trimmed(canonical(path)) for path in paths]


def _all_at(place: str, headers: tuple[Header, ...], query: str, body: bytes | None) -> list[str]:
    """The values at a place of a request, spelled as a part of a path. `$.layers.digest` is that of each layer."""
    kind, _, name = place.partition(":")
    if place.startswith("$."):
        texts = [one for one in _values_at(body or b"", tuple(place.split(".")[1:])) if isinstance(one, str) and one]
    elif kind == "xml":
        texts = texts_in_xml(body or b"", name)
    else:
        members = {"header": headers, "query": parse_qsl(query, keep_blank_values=True)}.get(kind, ())
        texts = [text for given, text in members if given.lower() == name.lower()]
    return [quote(text, safe="") for text in texts]


def _values_at(body: bytes, names: tuple[str, ...]) -> list[object]:
    try:
        found: list[object] = [msgspec.json.decode(body)]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    for name in names:
        found = [one for value in found for one in (value if isinstance(value, list) else [value])]
        found = [value[name] for value in found if isinstance(value, dict) and name in value]
    return found


def texts_in_xml(body: bytes, element: str) -> list[str]:
    """The texts of all elements with a name."""
    found = re.findall(rf"<(?:\w+:)?{re.escape(element)}(?:\s[^<>]*)?>([^<]+)<", body.decode("utf-8", "replace"))
    return [unescape(text.strip()) for text in found]


def _member(rule: Rule, place: str, headers: tuple[Header, ...], query: str, body: bytes | None) -> str:
    """The value at a place of a request."""
    kind, _, name = place.partition(":")
    if kind == "header":
        found = header(headers, name.lower())
    elif kind == "xml":
        found = next(iter(texts_in_xml(body or b"", name)), "")
    elif kind == "query":
        found = dict(parse_qsl(query, keep_blank_values=True)).get(name, "")
    elif kind == "form":
        is_form = media_type(header(headers, "content-type")) == _FORM
        found = dict(parse_qsl((body or b"").decode("utf-8", "replace"))).get(name, "") if is_form else ""
    else:
        found = text_at(body or b"", tuple(place.split(".")[1:]))
    if not found:
        raise ClientError(
            f"'{rule}' is about {place} of the request, and there is none, or it is no text or number: without it "
            "nobody can say what is changed, so the request is not replicated",
            status=422,
        )
    return found


def text_at(body: bytes, names: tuple[str, ...]) -> str:
    """The text or number at a place of a JSON body; empty if there is none."""
    found = _value_at(body, names)
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else ""


def _value_at(body: bytes, names: tuple[str, ...]) -> object:
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def check_meaning(service: ServiceConfig, request: Request, meta_id: str, body: bytes | Path) -> str | None:
    """Why an operation is not what this site's rules say about it; None if it is. Whichever site signed it, and
    whatever the rules of that site are."""
    rules, target = service.replication.rules, joined(request.path, request.query)
    found = rule_for(rules, request.method, target, request.headers)
    if not request.kind and (found is None or request.deletes or _is_plain(found[0])):
        return None
    same = f"services.{service.name}.rules must be the same at all sites of a resource; those of this site"
    if found is None or found[0].kind in _NO_OPERATIONS:
        return f"{same} say that it is no change, or do not know it"
    try:
        meaning = meaning_of(rules, request.method, target, request.headers, _content(body, found[0]))
    except ClientError as error:
        return str(error)
    is_same = meaning is not None and (meaning.kind.value, meaning.part) == (request.kind, request.part)
    if (found[0].step.session if found[0].step else "") != request.session:
        return f"{same} say that it is something else"
    if meaning is None or not is_same or meaning.meta_id(service.name) != meta_id:
        return f"{same} say that it is something else"
    return None


def _is_plain(rule: Rule) -> bool:
    """Whether a rule only says where the id of a new resource is: otherwise, the request is plain REST."""
    return rule.kind is RuleKind.CREATE and not rule.name and not rule.of


def _content(body: bytes | Path, rule: Rule) -> bytes | None:
    """The body, if the rule is about a member of it."""
    if isinstance(body, bytes) or not needs_body(rule):
        return body if isinstance(body, bytes) else None
    if body.stat().st_size > MAX_BODY_BYTES:
        raise ClientError(f"its body has more than {MAX_BODY_BYTES:,} bytes, and '{rule}' is about a member of it")
    return body.read_bytes()


# -- success ---------------------------------------------------------------------------------------------------


def failure(ok: Success, status: int, headers: tuple[Header, ...], body: bytes) -> str | None:
    """Why a response does not mean success by the conditions of a rule; None if it does."""
    done = status in ok.statuses if ok.statuses else 200 <= status < 300 or status == 303
    if not done:
        return f"its status is {status}"
    for name, text in ok.header:
        if text not in header(headers, name.lower()):
            return f"its header {name} does not have '{text}'"
    shown = body.decode("utf-8", "replace")
    for text in ok.has:
        if text not in shown:
            return f"its body does not have '{text}'"
    for text in ok.lacks:
        if text in shown:
            return f"its body has '{text}'"
    for names, value in ok.members:
        if _json_text(body, names) != value:
            return f"$.{'.'.join(names)} is not {value}"
    return None


def _json_text(body: bytes, names: tuple[str, ...]) -> str:
    """A member as the configuration writes it: texts without quotes."""
    found = _value_at(body, names)
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def rule_id(rules: ServiceRules, request: Request) -> str:
    """Where a rule says that the response to a create has the new id; empty if none does."""
    found = rule_for(rules, request.method, joined(request.path, request.query))
    return found[0].id if found else ""


def id_at(place: str, headers: tuple[Header, ...], body: bytes) -> str:
    """The id at a place of a response; empty if there is none."""
    kind, _, name = place.partition(":")
    if kind == "header":
        return last_segment(header(headers, name.lower()))
    if kind == "xml":
        return next(iter(texts_in_xml(body, name)), "")
    return text_at(body, tuple(place.split(".")[1:]))


# -- what nothing explains -------------------------------------------------------------------------------------


def refuse_unexplained(service: str, head: RequestHead) -> None:
    """Raises ClientError: nobody knows what a request changes of a service whose changes have one order."""
    path = printable(shortened(trimmed(split_target(head.target)[0])))
    raise ClientError(
        f"no rule of services.{service}.rules says what {head.method} {path} does, so it is not replicated. Add one: "
        f'{{match: "{head.method} {path}", is: action, of: service}} if every site can run it with the same result, or '
        "is: read if it changes nothing",
        status=422,
    )


def refuse_unexplained_query(service: str, rules: ServiceRules, head: RequestHead, item: str) -> None:
    """Raises ClientError for a change with a query that no rule explains: it may be about a part of the resource, or
    about something else."""
    path, query = split_target(head.target)
    names = [name for name, _ in parse_qsl(query, keep_blank_values=True) if name not in rules.selects]
    if not names:
        return
    members = "&".join(dict.fromkeys(names))
    shown = printable(shortened(members))
    raise ClientError(
        f"nothing says what of {printable(shortened(trimmed(path)))} a {head.method} with the query '{shown}' changes, "
        f'so it is not replicated. Add a rule to services.{service}.rules, for example {{match: "{head.method} '
        f'{printable(shortened(item))}?{shown}", is: {head.method.lower()} {printable(shortened(names[0]))}}}, or '
        f"{{query: [{', '.join(dict.fromkeys(names))}]}} if {in_words(dict.fromkeys(names))} changes nothing of what "
        "the request is about",
        status=422,
    )


class BufferedRequest:
    """A request whose body was read as a whole; implements `IncomingRequest`."""

    def __init__(self, incoming: IncomingRequest, content: bytes) -> None:
        self.head = incoming.head
        self.peer = incoming.peer
        self.forwarding: ForwardingInfo = incoming.forwarding
        self.is_forwarded = incoming.is_forwarded
        self.size: int | None = len(content)
        self.content = content

    async def body(self) -> AsyncIterator[bytes]:
        if self.content:
            yield self.content


async def buffered(incoming: IncomingRequest, why: Rule) -> BufferedRequest:
    """Raises ClientError if the body is too large to be looked into."""
    if isinstance(incoming, BufferedRequest):
        return incoming
    pieces, size = [], 0
    if incoming.size != 0:
        async for piece in incoming.body():
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise ClientError(
                    f"'{why}' is about a member of the body, and the body has more than {MAX_BODY_BYTES // 2**20} MiB",
                    status=413,
                )
            pieces.append(piece)
    return BufferedRequest(incoming, b"".join(pieces))


def without_members(body: bytes, local: frozenset[tuple[str, ...]]) -> bytes:
    """A JSON body without members that belong to one site."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body
    return msgspec.json.encode(content) if drop_members(content, local) else body


def drop_members(content: object, local: frozenset[tuple[str, ...]]) -> bool:
    """Remove members by their paths, also from each item of a list; whether there were any."""
    if isinstance(content, list):
        return sum(drop_members(one, local) for one in content) > 0
    if not isinstance(content, dict):
        return False
    here = [path[0] for path in local if len(path) == 1 and path[0] in content]
    for name in here:
        del content[name]
    below: dict[str, set[tuple[str, ...]]] = {}
    for path in local:
        if len(path) > 1:
            below.setdefault(path[0], set()).add(path[1:])
    dropped = [drop_members(content[name], frozenset(paths)) for name, paths in below.items() if name in content]
    return bool(here) or any(dropped)
