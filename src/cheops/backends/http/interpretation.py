"""What a request is about, by the rules of its service: what it does, to which resource, and to which part of it.

The rules are data (cheops.config.service_rules); this module applies them to one request. Every site does so again
before it runs an operation: its own rules must say the same.
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from cheops.backends.http.ids import is_meta_id, meta_id_of
from cheops.backends.http.paths import canonical, joined, last_segment, split_target, trimmed
from cheops.backends.http.payload import Header, Request, header, id_in, is_json, media_type, part_name
from cheops.backends.http.places import (
    AmbiguousError,
    has_member,
    quoted,
    spelled,
    text_in,
    texts_in,
    texts_in_xml,
    value_at,
)
from cheops.backends.http.protobuf import text_at_fields
from cheops.config.service_rules import MANY, SERVICE, Rule, RuleKind, ServiceRules, Success, fill_in, references
from cheops.config.services import CREATE_NAMED, ServiceConfig
from cheops.errors import ClientError
from cheops.gateway.headers import ForwardingInfo, RequestHead
from cheops.gateway.interfaces import IncomingRequest
from cheops.text import in_words, printable, shortened

MAX_BODY_BYTES = 4 * 1024 * 1024  # of a request whose body says what it is about
MAX_PATHS = 10_000  # of the resources that one request is about
WHOLE = "/"  # the resource that is a whole service
_FORM = "application/x-www-form-urlencoded"
NO_OPERATIONS = (RuleKind.READ, RuleKind.REFUSE, RuleKind.SESSION)


class Meaning(msgspec.Struct, frozen=True):
    """What a request does, and to what. `item` is the path by which its resource is known at every site; empty if the
    service gives it an id."""

    kind: RuleKind
    item: str = ""
    part: str = ""
    rule: Rule | None = None
    after: tuple[str, ...] = ()  # the paths of other resources that must be there first
    to: str = ""  # of a move: the new path

    def meta_id(self, service: str) -> str:
        return meta_id_of("path", service, self.item) if self.is_named else last_segment(self.item).lower()

    @property
    def is_named(self) -> bool:
        """Whether a client chose the name; otherwise the service gave an id, so the path has a meta-id."""
        return not is_meta_id(last_segment(self.item))

    @property
    def renews_id(self) -> bool:
        """Whether the service may give it another id: then the response has it."""
        return self.kind is not RuleKind.CREATE and self.rule is not None and bool(self.rule.id)

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


def rule_for(  # noqa: PLR0913 - a request's parts
    rules: ServiceRules,
    method: str,
    target: str,
    headers: tuple[Header, ...] = (),
    body: bytes | Path | None = None,
    *,
    any_query: bool = False,
) -> tuple[Rule, dict[str, str]] | None:
    """The rule of a request. The body counts only where a rule has `has`. Raises AmbiguousError."""
    path, query = split_target(target)
    for rule, values in rules.matching(method, canonical(path), query, headers, any_query=any_query):
        if not rule.has or has_member(_content(body, rule) or b"", rule.has, headers):
            return rule, values
    return None


def rule_about_body(rules: ServiceRules, method: str, target: str, headers: tuple[Header, ...]) -> Rule | None:
    """A rule for which the body of a request says what it is about; None if no body is needed. If no rule fits but for
    the query, also of these: see `meaning_of`."""
    path, query = split_target(target)
    found = list(rules.matching(method, canonical(path), query, headers))
    found = found or list(rules.matching(method, canonical(path), query, headers, any_query=True))
    return next((rule for rule, _ in found if needs_body(rule)), None)


def needs_body(rule: Rule) -> bool:
    """Whether the body of a request says what it is about, or what must be there first."""
    places = (one for template in (rule.of, rule.to, *rule.after) for one in references(template))
    return bool(rule.name or rule.has) or any(one.startswith(("$.", "form:", "xml:")) for one in places)


def meaning_of(  # noqa: PLR0913 - a request's parts
    rules: ServiceRules,
    method: str,
    target: str,
    headers: tuple[Header, ...],
    body: bytes | Path | None,
    *,
    any_query: bool = False,
) -> Meaning | None:
    """What the rules say about a request; None if they say nothing. Raises ClientError if the request lacks what its
    rule refers to. `body` is needed only if `needs_body`. With `any_query`: what they would say without those members
    of the query that they do not know."""
    path, query = split_target(target)
    found = rule_for(rules, method, target, headers, body, any_query=any_query)
    if found is None:
        return None
    rule, values = found
    if rule.kind in NO_OPERATIONS:
        return Meaning(rule.kind, rule=rule)
    part = fill_in(rule.part, values)
    if rule.of == SERVICE:
        return Meaning(rule.kind, WHOLE, part, rule)
    content = _content(body, rule)
    if rule.name:
        place = "$." + ".".join(rule.name)
        name = _in_protobuf(rules, place, headers, content) or text_in(rule, place, headers, query, content)
        item = f"{trimmed(canonical(path)).rstrip('/')}/{quoted(name)}"
    elif rule.of:
        item = _filled_in(rule, rule.of, values, headers, query, content)
    else:
        item = "" if rule.kind is RuleKind.CREATE else trimmed(canonical(path))
    to = _filled_in(rule, rule.to, values, headers, query, content) if rule.to else ""
    if not rules.is_whole:
        return Meaning(rule.kind, item, part, rule, _needed(rule, values, headers, query, content), to)
    # Everything that the service does has one order, so each of its resources is a part of one.
    within = "/".join(one for one in (item.strip("/") or trimmed(path).strip("/"), part) if one)
    kind = RuleKind.ACTION if rule.kind is RuleKind.MOVE else rule.kind
    return Meaning(kind, WHOLE, within, rule)


def _filled_in(  # noqa: PLR0913, PLR0917 - a template, and all that it may refer to
    rule: Rule, template: str, values: dict[str, str], headers: tuple[Header, ...], query: str, body: bytes | None
) -> str:
    """The path that a template stands for."""
    texts = {one: _of_variable(rule, one, values) for one in references(template) if one in values}
    for one in references(template):
        if one not in values:
            texts[one] = spelled(one, text_in(rule, one.removesuffix(MANY), headers, query, body))
    return trimmed(canonical(fill_in(template, texts)))


def _in_protobuf(rules: ServiceRules, place: str, headers: tuple[Header, ...], body: bytes | None) -> str:
    """A member of a body that is protobuf, of the type that the rules know; empty for any other body."""
    fields = dict(rules.protobuf.members).get(place)
    if not fields or media_type(header(headers, "content-type")) != rules.protobuf.type:
        return ""
    return text_at_fields((body or b"")[rules.protobuf.skip :], fields)


def _needed(
    rule: Rule, values: dict[str, str], headers: tuple[Header, ...], query: str, body: bytes | None
) -> tuple[str, ...]:
    """The paths of the resources that a rule says must be there before its request runs."""
    found = (paths_at(rule, template, values, headers, query, body) for template in rule.after)
    return tuple(dict.fromkeys(path for paths in found for path in paths))


def _of_variable(rule: Rule, variable: str, values: dict[str, str]) -> str:
    """The value of a variable as a part of a path."""
    return values[variable] if variable in rule.in_path else quoted(values[variable])


def paths_at(  # noqa: PLR0913, PLR0917 - a request's parts
    rule: Rule, template: str, values: dict[str, str], headers: tuple[Header, ...], query: str, body: bytes | None
) -> list[str]:
    """All paths that a template stands for in a request: a place in it may have several values, or none."""
    paths = [template]
    for one in references(template):
        texts = [_of_variable(rule, one, values)] if one in values else _all_at(one, headers, query, body)
        if len(paths) * len(texts) > MAX_PATHS:
            raise AmbiguousError(f"'{rule}' is about each {one} of the request", f"there are more than {MAX_PATHS:,}")
        paths = [path.replace(f"{{{one}}}", text) for path in paths for text in texts]
    return [trimmed(canonical(path)) for path in paths]


def _all_at(place: str, headers: tuple[Header, ...], query: str, body: bytes | None) -> list[str]:
    """The values at a place of a request, spelled as a part of a path."""
    return [spelled(place, text) for text in dict.fromkeys(texts_in(place.removesuffix(MANY), headers, query, body))]


def check_meaning(service: ServiceConfig, request: Request, meta_id: str, body: bytes | Path) -> str | None:
    """Why an operation is not what this site's rules say about it; None if it is. Whichever site signed it, and
    whatever the rules of that site are."""
    rules, target = service.replication.rules, joined(request.path, request.query)
    same = (
        f"services.{service.name}.rules must be the same at all sites of a resource; those of the site where it failed"
    )
    if not request.kind and request.deletes:
        return None
    try:
        meaning = meaning_of(rules, request.method, target, request.headers, None if request.session else body)
    except ClientError as error:
        return str(error)
    session = meaning.rule.step.session if meaning and meaning.rule and meaning.rule.step else ""
    if not request.kind and (meaning is None or (meaning.rule and _is_plain(meaning.rule))):
        return None
    if meaning is None or meaning.kind in NO_OPERATIONS:
        return f"{same} say that it is no change, or do not know it"
    # That the path of what clients name is the resource's own was checked before: `rules.check_place`.
    own = (trimmed(request.item), meaning.item) if request.named else (meta_id, meaning.meta_id(service.name))
    is_same = (meaning.kind.value, meaning.part, meaning.to) == (request.kind, request.part, request.to)
    is_same = is_same and session == request.session and own[0] == own[1]
    return None if is_same else f"{same} say that it is something else"


def _is_plain(rule: Rule) -> bool:
    """Whether a rule only says where the id of a new resource is: otherwise, the request is plain REST."""
    return rule.kind is RuleKind.CREATE and not rule.name and not rule.of


def _content(body: bytes | Path | None, rule: Rule) -> bytes | None:
    """The body, if the rule is about a member of it."""
    if not isinstance(body, Path) or not needs_body(rule):
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
    found = value_at(body, names)
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def rule_id(rules: ServiceRules, request: Request, body: bytes | Path) -> str:
    """Where a rule says that the response to a create has the new id; empty if none does."""
    found = rule_for(rules, request.method, joined(request.path, request.query), request.headers, body)
    return found[0].id if found else ""


def id_at(place: str, headers: tuple[Header, ...], body: bytes) -> str | int:
    """The id at a place of a response; empty if there is none."""
    kind, _, name = place.partition(":")
    if kind == "header":
        return last_segment(header(headers, name.lower()))
    if kind == "xml":
        return next(iter(texts_in_xml(body, name)), "")
    return id_in(body, tuple(place.split(".")[1:])) or ""


# -- what nothing explains -------------------------------------------------------------------------------------


def refuse_unexplained(service: str, head: RequestHead) -> None:
    """Raises ClientError: nobody knows what a request changes of a service whose changes have one order."""
    path = printable(shortened(trimmed(split_target(head.target)[0])))
    raise ClientError(
        f"no rule of services.{service}.rules says what {head.method} {path} does, so it is not replicated. Add one at "
        f'all sites: {{match: "{head.method} {path}", is: action, of: service}} if every site can run it with the same '
        f'result, or {{match: "{head.method} {path}", is: read}} if it changes nothing',
        status=422,
    )


def refuse_by_rule(service: str, head: RequestHead, rule: Rule, replicated: str) -> None:
    """Raises ClientError: a rule says that no other site could do the same. `replicated` is what it is about."""
    path = printable(shortened(trimmed(split_target(head.target)[0])))
    about = f", and it is about {printable(shortened(replicated))}" if replicated else ""
    raise ClientError(
        f"{head.method} {path} is not replicated (services.{service}.rules, '{rule}'){about}: {rule.why}", status=422
    )


def unexplained_members(rules: ServiceRules, target: str) -> list[str]:
    """The names of the query members of a plain REST request that may have a meaning, each once."""
    _, query = split_target(target)
    names = (name for name, _ in parse_qsl(query, keep_blank_values=True) if name not in rules.selects)
    return list(dict.fromkeys(names))


def refuse_unexplained_query(service: str, rules: ServiceRules, head: RequestHead, item: str) -> None:
    """Raises ClientError for a change with a query that no rule explains: it may be about a part of the resource, or
    about something else."""
    path, query = split_target(head.target)
    names = unexplained_members(rules, head.target)
    if not names:
        return
    values, word = dict(parse_qsl(query, keep_blank_values=True)), head.method.lower()
    members = "&".join(f"{name}={{{_variable(name)}}}" if values[name] else name for name in names)
    first = printable(shortened(names[0]))
    line = f'{{match: "{head.method} {printable(shortened(item))}?{printable(shortened(members))}", is: '
    text = f"{line}{word} {first}}} if it changes a part of what is at this path"
    if values[names[0]]:  # only people know: one of the two would let a part replace another, or two contents both stay
        text = (
            f'{line}"{word} {{{_variable(names[0])}}}"}} if the value of {first} names the part that it changes, '
            f"{line}{word} {first}}} if the value is what it writes"
        )
    raise ClientError(
        f"nothing says what of {printable(shortened(trimmed(path)))} a {head.method} with the query "
        f"'{printable(shortened('&'.join(names)))}' changes, so it is not replicated. Add a rule to "
        f"services.{service}.rules at all sites: {text}, or {{query: [{', '.join(names)}]}} if {in_words(names)} "
        "changes nothing of what the request is about",
        status=422,
    )


def _variable(name: str) -> str:
    """A variable of a rule for the value of a query member."""
    found = re.sub("[^a-z_]+", "_", name.lower()).strip("_")
    return found if found not in ("", "id") else "value"


def refuse_unreadable(service: ServiceConfig, content_type: str, meaning: Meaning | None) -> None:
    """Raises ClientError for a body (protobuf, for example) from which members that belong to one site cannot be
    removed. YAML is what people write, and what is created has no version yet: they do not have them."""
    found = media_type(content_type)
    if meaning is not None and meaning.kind is RuleKind.CREATE and found == service.replication.rules.protobuf.type:
        return
    if not service.replication.local_members or not found or is_json(found) or found.endswith("yaml"):
        return
    names = ", ".join(sorted(".".join(("$", *path)) for path in service.replication.local_members)[:3])
    raise ClientError(
        f"a body of type '{printable(shortened(found))}' is not replicated for services.{service.name}: members that "
        f"belong to one site ({names}, …) must be removed from it, and this is done in JSON only. Send JSON",
        status=415,
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
