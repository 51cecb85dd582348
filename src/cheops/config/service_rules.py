"""Rules of a service: what a request is about. A request that is replicated is never guessed at.

rules:
  - {match: POST /v3/kv/put, is: put, of: "$.key"}                 # the key in the body is what it changes
  - {match: POST /v3/kv/range, is: read}                           # reads are never logged
  - {match: "PUT /{bucket}/{key**}?tagging", is: put tagging, of: "/{bucket}/{key}"}
  - {match: "POST /{repo}/git-receive-pack", is: action, of: "/{repo}", ok: {body: unpack ok}}

`rules: etcd` takes a set that comes with Cheops (cheops/rules/*.yaml, in the same form), `rules: [etcd, {match: …}]`
a set and rules of one's own; the first rule that matches counts. A request that none matches is plain REST.

Requests that make one change together are a session: see cheops.config.session_rules.

In `match`, `{name}` and `*` stand for one part of the path, `{name**}` and `**` for one or more. A query member that is
not named must not be there, unless `query` lists it: a query is part of what a request is about.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from urllib.parse import parse_qsl, quote

from cheops.config.session_rules import OPTIONS, SessionRole, SessionStep, read_step
from cheops.config.values import ValueType
from cheops.text import listed, nearest, printable, shortened
from cheops.yaml_file import Value, parse_yaml

SERVICE = "service"  # `of: service`: one order for everything that the service does
REPLICANTS = "replicants"  # `is: read, of: replicants`: with '&', what is not replicated is not there
ANY_QUERY = "*"
_METHOD = re.compile(r"[A-Z]{1,32}|\*")
_VARIABLE = re.compile(r"\{([a-z][a-z_]*)(\*\*)?\}")
_PLACE = re.compile(r"\$(?:\.[A-Za-z_][\w-]*){1,8}|(?:query|form|header|xml):[\w.-]{1,100}")
_REFERENCE = re.compile(r"\{([^{}]+)\}")
_MEMBER = re.compile(r"\$((?:\.[A-Za-z_][\w-]*){1,8})")
_PART = re.compile(r"[^\s*][^*]{0,60}")
_MOST_RULES = 500


class RuleKind(StrEnum):
    """What a request does."""

    READ = "read"
    CREATE = "create"
    PUT = "put"
    PATCH = "patch"
    DELETE = "delete"
    ACTION = "action"
    NEVER = "never"  # it is refused with '&', and if it is about a replicant
    SESSION = "session"  # a request of a session that is not complete yet; see cheops.config.session_rules


_STATED = tuple(kind for kind in RuleKind if kind is not RuleKind.SESSION)  # what `is` may say


@dataclass(frozen=True, slots=True)
class Success:
    """When a response means that the request was done; by default if its status is 2xx or 303."""

    statuses: frozenset[int] = frozenset()
    header: tuple[tuple[str, str], ...] = ()  # names, and a text that each has in it
    has: tuple[str, ...] = ()  # texts of the body
    lacks: tuple[str, ...] = ()
    members: tuple[tuple[tuple[str, ...], str], ...] = ()  # of a JSON body, and their values as JSON


@dataclass(frozen=True, slots=True)
class Rule:
    """What the requests are about that it matches."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()  # members that must be there; "{x}" names their value, "" takes any
    selects: frozenset[str] = frozenset()  # members that may be there, and change nothing of what it is about
    kind: RuleKind = RuleKind.READ
    part: str = ""  # of the resource: the `tagging` of an object
    of: str = ""  # the resource: a template of its path, `service`, or empty for the path of the request
    id: str = ""  # where the response to a create has the new id; empty: as the service says
    name: tuple[str, ...] = ()  # where the body of a create has the name that its client chose
    ok: Success = field(default_factory=Success)
    step: SessionStep | None = None  # its place in a session
    header: str = ""  # it matches only requests with this header
    after: tuple[str, ...] = ()  # templates of the paths of other resources that must be there first
    why: str = ""  # why it is never replicated, and what to do instead

    def __str__(self) -> str:
        members = "&".join(f"{name}={value}" if value else name for name, value in self.query)
        return f"{self.method} {self.path}{'?' if members else ''}{members}"

    @property
    def in_path(self) -> frozenset[str]:
        """The variables of the path. Their values are spelled as they stand there, percent-encoded."""
        return frozenset(_pattern(self.path).groupindex)

    def match(self, method: str, path: str, query: str) -> dict[str, str] | None:
        """What its variables stand for in a request, or None if it does not match. `path` in its one spelling."""
        if self.method not in ("*", method):
            return None
        found = _pattern(self.path).fullmatch(path)
        if found is None:
            return None
        members = parse_qsl(query, keep_blank_values=True)
        given, values = dict(members), dict(found.groupdict())
        if len(given) < len(members):
            return None  # one is there twice, and services differ in which one counts
        for name, value in self.query:
            if name not in given or (value and not value.startswith("{") and given[name] != value):
                return None
            if value.startswith("{"):
                values[value.strip("{}")] = given[name]
        others = given.keys() - {name for name, _ in self.query}
        return values if ANY_QUERY in self.selects or others <= self.selects else None


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """All rules of a service, in their order."""

    rules: tuple[Rule, ...] = ()
    selects: frozenset[str] = frozenset()  # query members of plain REST requests that change nothing
    names: tuple[str, ...] = ()  # the sets that it takes
    local: frozenset[tuple[str, ...]] = frozenset()  # members that belong to one site, of these sets

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    @property
    def is_whole(self) -> bool:
        """Whether everything that the service does has one order: then it is one resource."""
        return any(rule.of == SERVICE for rule in self.rules)

    @property
    def has_sessions(self) -> bool:
        return any(rule.step for rule in self.rules)

    def first(
        self, method: str, path: str, query: str, headers: Iterable[tuple[str, str]] = ()
    ) -> tuple[Rule, dict[str, str]] | None:
        for rule in self.rules:
            if rule.header and rule.header.lower() not in (name.lower() for name, _ in headers):
                continue
            values = rule.match(method, path, query)
            if values is not None:
                return rule, values
        return None


@cache
def _pattern(path: str) -> re.Pattern[str]:
    parts = "".join(f"/{_part_pattern(part)}" for part in path.split("/")[1:])
    return re.compile(parts if path.endswith("/") else f"{parts}/?")


def _part_pattern(part: str) -> str:
    if part in ("*", "**"):
        return "[^/]+" if part == "*" else "[^/]+(?:/[^/]+)*"
    done, out = 0, []
    for found in _VARIABLE.finditer(part):
        text = "[^/]+(?:/[^/]+)*" if found[2] else "[^/]+"
        out += [re.escape(part[done : found.start()]), f"(?P<{found[1]}>{text})"]
        done = found.end()
    return "".join([*out, re.escape(part[done:])])


# -- reading ---------------------------------------------------------------------------------------------------


def rule_sets() -> tuple[str, ...]:
    """The names of the sets that come with Cheops."""
    files = resources.files("cheops.rules").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


@cache
def rule_set(name: str) -> ServiceRules:
    """A set that comes with Cheops."""
    file = resources.files("cheops.rules") / f"{name}.yaml"
    root = parse_yaml(file.read_text(), f"rules/{name}.yaml").record(required=("rules",), optional=("query", "local"))
    rules = tuple(_read_rule(one) for one in root["rules"].items())
    selects = _read_query(root["query"]) if "query" in root else frozenset()
    return ServiceRules(rules, selects, (name,), _read_members(root["local"]) if "local" in root else frozenset())


def _read_rules(value: Value) -> ServiceRules:
    rules: list[Rule] = []
    selects: set[str] = set()
    names: list[str] = []
    local: set[tuple[str, ...]] = set()
    for one in [value] if value.is_text else value.items():
        if one.is_text:
            taken = rule_set(_known_set(one))
            rules += taken.rules
            selects |= taken.selects
            names += taken.names
            local |= taken.local
        elif set(one.mapping()) == {"query"}:
            selects |= _read_query(one.mapping()["query"])
        else:
            rules.append(_read_rule(one))
    if len(rules) > _MOST_RULES:
        raise value.fail(f"{len(rules):,} rules; at most {_MOST_RULES} are accepted")
    return ServiceRules(tuple(rules), frozenset(selects), tuple(names), frozenset(local))


def _known_set(value: Value) -> str:
    name, known = value.string(), rule_sets()
    if name not in known:
        meant = nearest(name, known)
        hint = f"; did you mean '{meant}'?" if meant else "."
        raise value.fail(f"unknown set of rules '{printable(shortened(name))}'{hint} Sets: {listed(known)}")
    return name


def _read_rule(value: Value) -> Rule:
    options = ("is", "of", "id", "name", "ok", "query", "header", "after", "why", *OPTIONS)
    record = value.record(required=("match",), optional=options)
    method, path, query = _read_match(record["match"])
    variables = {name for name, _ in _VARIABLE.findall(path)} | {one.strip("{}") for _, one in query if "{" in one}
    step = read_step(record, variables)
    kind, part = _kind_of(value, record, step)
    of = _read_subject(record["of"], variables) if "of" in record else ""
    if (of == REPLICANTS) > (kind is RuleKind.READ):
        raise record["of"].fail("only a read is 'of: replicants'")
    if kind is RuleKind.READ and (of not in ("", REPLICANTS) or part):
        raise value.fail("a read is not logged, so it has no 'of': it goes to the copy here, or to the nearest")
    if kind is RuleKind.ACTION and not of:
        raise value.fail('\'of\' is missing: what the action is about, such as of: "/{repo}", "$.key" or service')
    for text in _REFERENCE.findall(part):
        if text not in variables:
            raise record["is"].fail(f"'{{{text}}}' is not in 'match'")
    return Rule(
        method,
        path,
        query,
        _read_query(record["query"]) if "query" in record else _any_query(kind),
        kind,
        part,
        of,
        _read_id(record["id"], kind) if "id" in record and not step else "",
        _read_name(record["name"], kind) if "name" in record else (),
        _read_success(record["ok"]) if "ok" in record else Success(),
        step,
        record["header"].string() if "header" in record else "",
        tuple(_read_subject(one, variables) for one in record["after"].items()) if "after" in record else (),
        record["why"].string() if "why" in record else "",
    )


def _kind_of(value: Value, record: Mapping[str, Value], step: SessionStep | None) -> tuple[RuleKind, str]:
    """What the requests of a rule do. A session is one change, and its last request says which."""
    if step is None or step.role is SessionRole.COMPLETES:
        if "is" not in record:
            raise value.fail("'is' is missing: what the request does, such as is: put")
        kind, part = _read_kind(record["is"])
        if step and (kind is not RuleKind.PUT or part):
            raise record["is"].fail(
                "what completes a session is a 'put' of a resource: other sites may have to repeat it"
            )
        return kind, part
    for key in ("is", "of", "name", "ok", "after", "why", "header"):
        if key in record:
            raise record[key].fail("it belongs to the rule that completes the session: only then something is changed")
    return RuleKind.SESSION, ""


def _any_query(kind: RuleKind) -> frozenset[str]:
    """The query members of a rule that lists none: of what is not replicated, all."""
    return frozenset((ANY_QUERY,) if kind in (RuleKind.READ, RuleKind.NEVER) else ())


def _read_match(value: Value) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    text = value.string()
    method, _, target = text.strip().partition(" ")
    path, _, query = target.strip().partition("?")
    if not _METHOD.fullmatch(method) or not path.startswith("/") or re.search(r"[\s#%]", target.strip()):
        shown = printable(shortened(text))
        raise value.fail(
            f"expected a method and a path, such as POST /kv/put or \"PUT /{{bucket}}/{{key}}\", found '{shown}'"
        )
    names = [name for name, _ in _VARIABLE.findall(path)]
    if len(set(names)) != len(names):
        raise value.fail("a variable is there twice")
    if "{" in _VARIABLE.sub("", path) or "}" in _VARIABLE.sub("", path):
        raise value.fail("a variable is written {name} or {name**}, with small letters and _")
    members = tuple((name, one) for name, _, one in (part.partition("=") for part in query.split("&") if part))
    return method, path, members


def _read_kind(value: Value) -> tuple[RuleKind, str]:
    word, _, part = value.string().strip().partition(" ")
    if word not in _STATED:
        known = ", ".join(_STATED)
        raise value.fail(f"expected what a request does: {known}; found '{printable(shortened(word))}'")
    if part and not _PART.fullmatch(part.strip()):
        raise value.fail("the part of a resource has no '*', and at most 60 characters")
    return RuleKind(word), part.strip()


def _read_subject(value: Value, variables: Iterable[str]) -> str:
    """A template of a path: `$.key` becomes `/$.key/{$.key}`, so that it is the same for all rules of a service."""
    text = value.string().strip()
    if text in (SERVICE, REPLICANTS):
        return text
    if _PLACE.fullmatch(text):
        return f"/{text}/{{{text}}}"
    if not text.startswith("/"):
        shown = printable(shortened(text))
        raise value.fail(
            f'expected a path such as "/{{bucket}}/{{key}}", a member such as "$.key", or service; found \'{shown}\''
        )
    for name in _REFERENCE.findall(text):
        if name not in variables and not _PLACE.fullmatch(name):
            raise value.fail(f"'{{{printable(shortened(name))}}}' is neither in 'match' nor a member such as {{$.key}}")
    return text


def replace_variable(rule: Rule, path: str, query: str, name: str, value: str) -> tuple[str, str]:
    """The path and query of a request that a rule matches, with another value for one of its variables."""
    found = _pattern(rule.path).fullmatch(path)
    if found and name in found.groupdict():
        path = path[: found.start(name)] + quote(value, safe="") + path[found.end(name) :]
    held = {member for member, one in rule.query if one == f"{{{name}}}"}
    parts = (part.partition("=") for part in query.split("&"))
    spelled = (
        f"{member}={quote(value, safe='')}" if member in held else member + sign + one for member, sign, one in parts
    )
    return path, "&".join(spelled)


def target_of_rule(rule: Rule, values: Mapping[str, str]) -> tuple[str, str]:
    """The path and query of a request that a rule matches, from the values of its variables."""
    path = _VARIABLE.sub(lambda found: values[found[1]], rule.path)
    members = ((name, values[one.strip("{}")] if one.startswith("{") else one) for name, one in rule.query)
    return path, "&".join(f"{name}={quote(one, safe='')}" if one else name for name, one in members)


def references(template: str) -> tuple[str, ...]:
    """What a template refers to: variables of the rule, and members of the request (`$.key`)."""
    return tuple(_REFERENCE.findall(template))


def fill_in(template: str, values: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: values[found[1]], template)


def _read_query(value: Value) -> frozenset[str]:
    return frozenset(one.string() for one in ([value] if value.is_text else value.items()))


def _read_id(value: Value, kind: RuleKind) -> str:
    text = value.string()
    if kind is not RuleKind.CREATE:
        raise value.fail("only the response to a create has a new id")
    if text.lower() == "location":
        return "header:Location"
    if not re.fullmatch(r"\$(\.[A-Za-z_][\w-]*){1,8}|header:[\w-]{1,100}|xml:[\w-]{1,100}", text):
        shown = printable(shortened(text))
        raise value.fail(f"expected where a new id is: $.id, Location, header:NAME or xml:ELEMENT; found '{shown}'")
    return text


def _read_name(value: Value, kind: RuleKind) -> tuple[str, ...]:
    text = value.string()
    if kind is not RuleKind.CREATE or not re.fullmatch(r"\$(\.[A-Za-z_][\w-]*){1,8}", text):
        raise value.fail(
            "expected where the body of a create has the name that its client chose, such as $.metadata.name"
        )
    return tuple(text.split(".")[1:])


def _read_success(value: Value) -> Success:
    statuses: set[int] = set()
    header: list[tuple[str, str]] = []
    has: list[str] = []
    lacks: list[str] = []
    members: list[tuple[tuple[str, ...], str]] = []
    for key, at in value.mapping().items():
        many = [at] if at.is_text else None
        if key == "status":
            statuses.update(one.whole(minimum=100, maximum=599) for one in many or at.items())
        elif key == "header":
            header += [(name, one.string()) for name, one in at.mapping().items()]
        elif key == "body":
            has += [one.string() for one in many or at.items()]
        elif key == "lacks":
            lacks += [one.string() for one in many or at.items()]
        elif re.fullmatch(r"\$(\.[A-Za-z_][\w-]*){1,8}", key):
            members.append((tuple(key.split(".")[1:]), at.string()))
        else:
            raise at.fail(f"unknown condition '{key}'; known: status, header, body, lacks, and members such as $.done")
    return Success(frozenset(statuses), tuple(header), tuple(has), tuple(lacks), tuple(members))


def _write(rules: ServiceRules) -> str:
    return f"[{', '.join((*rules.names, *map(str, rules.rules)))}]"


SERVICE_RULES = ValueType("rules, or the name of a set", _read_rules, _write)


def _read_members(value: Value) -> frozenset[tuple[str, ...]]:
    paths = []
    for one in value.items():
        text = one.string()
        if not (found := _MEMBER.fullmatch(text)):
            raise one.fail(f"expected a member, such as $.metadata.uid, found '{printable(shortened(text))}'")
        paths.append(tuple(found[1].split(".")[1:]))
    return frozenset(paths)


def _write_members(paths: frozenset[tuple[str, ...]]) -> str:
    return f"[{', '.join(sorted('.'.join(('$', *path)) for path in paths))}]"


MEMBERS = ValueType("list of members", _read_members, _write_members)
