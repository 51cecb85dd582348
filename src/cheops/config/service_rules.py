"""Rules of a service: what a request is about. A request that is replicated is never guessed at.

rules:
  - {match: POST /v3/kv/put, is: put, of: "$.key"}                 # the key in the body is what it changes
  - {match: POST /v3/kv/range, is: read}                           # reads are never logged
  - {match: "PUT /{bucket}/{key**}?tagging", is: put tagging, of: "/{bucket}/{key}"}
  - {match: "POST /{repo}/git-receive-pack", is: action, of: "/{repo}", ok: {body: unpack ok}}
  - {match: POST /silences, has: $.id, is: put, of: "/silence/{$.id}", id: $.silenceID}    # otherwise it creates one
  - {match: "PATCH /files/{path**}", is: move, to: "/files/{$.path**}"}                     # a rename
  - {match: POST /restore, is: refuse, why: "a backup belongs to one site"}

`rules: etcd` takes a set that comes with Cheops (cheops/rules/*.yaml, in the same form), `rules: [etcd, {match: …}]`
a set and rules of one's own; the first rule that matches counts. A request that none matches is plain REST.

In `match`, `{name}` and `*` stand for one part of the path, `{name**}` and `**` for one or more. A query member that is
not named must not be there, unless `query` lists it: a query is part of what a request is about. A rule with `has`
matches only if the body has that member. `{id}` is an id that the service gave; other names are chosen by clients.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import resources
from urllib.parse import parse_qsl

from cheops.config.values import ValueType
from cheops.log.matrix import Entry
from cheops.matrix_file import matrix_within
from cheops.text import listed, nearest, printable, shortened
from cheops.yaml_file import Value, parse_yaml

SERVICE = "service"  # `of: service`: one order for everything that the service does
ANY_QUERY = "*"
MANY = "**"  # a variable, or a member of the body, that is several parts of a path
_ID = "id"  # the variable that stands for an id that the service gave
_METHOD = re.compile(r"[A-Z]{1,32}|\*")
_VARIABLE = re.compile(r"\{([a-z][a-z_]*)(\*\*)?\}")
_PLACE = re.compile(r"\$(?:\.[A-Za-z_][\w-]*){1,8}|(?:query|form|header):[\w.-]{1,100}")
_REFERENCE = re.compile(r"\{([^{}]+)\}")
_JSON_MEMBER = re.compile(r"\$(\.[A-Za-z_][\w-]*){1,8}")
_STEP = re.compile(r'\.([A-Za-z_][\w-]*)|\["([^"\]]{1,100})"\]')  # names with other characters: $["m.relates_to"]
_URL_PATH = re.compile(r"/[^\s?#]*")
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
    MOVE = "move"  # gives it another name
    REFUSE = "refuse"  # no other site could do the same


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
    has: tuple[str, ...] = ()  # a member of the body without which it does not match
    to: str = ""  # of a move: a template of the new path
    why: str = ""  # a request is refused

    def __str__(self) -> str:
        members = "&".join(f"{name}={value}" if value else name for name, value in self.query)
        return (
            f"{self.method} {self.path}{'?' if members else ''}{members}{f' with {self.has[-1]}' if self.has else ''}"
        )

    @property
    def is_of_service_id(self) -> bool:
        """Whether its resource has an id that the service gave, rather than a name that a client chose."""
        if self.kind is RuleKind.CREATE:
            return not self.name and not self.of
        return bool(self.id) or (self.of or self.path).endswith(f"{{{_ID}}}")

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
class ProtobufBodies:
    """Where bodies that are protobuf have what rules are about: field numbers, after some bytes of an envelope."""

    type: str = ""
    skip: int = 0
    members: tuple[tuple[str, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceRules:
    """All rules of a service, in their order."""

    rules: tuple[Rule, ...] = ()
    selects: frozenset[str] = frozenset()  # query members of plain REST requests that change nothing
    names: tuple[str, ...] = ()  # the sets that it takes
    local: frozenset[tuple[str, ...]] = frozenset()  # members that belong to one site, of these sets
    items: tuple[tuple[str, str], ...] = ()  # `items` of these sets; see config.services
    refs: tuple[tuple[str, str], ...] = ()
    matrix: tuple[Entry, ...] = ()  # how their operations combine
    ignore: frozenset[tuple[str, ...]] = frozenset()  # members that `verify` does not compare
    protobuf: ProtobufBodies = field(default_factory=ProtobufBodies)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    @property
    def is_whole(self) -> bool:
        """Whether everything that the service does has one order: then it is one resource."""
        return any(rule.of == SERVICE for rule in self.rules)

    def matching(self, method: str, path: str, query: str) -> Iterator[tuple[Rule, dict[str, str]]]:
        """The rules that fit a request, in their order, up to the first that needs no member of its body."""
        for rule in self.rules:
            values = rule.match(method, path, query)
            if values is not None:
                yield rule, values
                if not rule.has:
                    return


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
    optional = ("query", "local", "items", "refs", "matrix", "ignore", "protobuf")
    root = parse_yaml(file.read_text(), f"rules/{name}.yaml").record(required=("rules",), optional=optional)
    rules = tuple(_read_rule(one) for one in root["rules"].items())
    return ServiceRules(
        rules,
        _read_query(root["query"]) if "query" in root else frozenset(),
        (name,),
        _read_members(root["local"]) if "local" in root else frozenset(),
        read_items(root["items"]) if "items" in root else (),
        read_refs(root["refs"]) if "refs" in root else (),
        matrix_within(root["matrix"]).matrix.entries if "matrix" in root else (),
        _read_members(root["ignore"]) if "ignore" in root else frozenset(),
        _read_protobuf(root["protobuf"]) if "protobuf" in root else ProtobufBodies(),
    )


def _read_rules(value: Value) -> ServiceRules:
    rules: list[Rule] = []
    selects: set[str] = set()
    sets: list[ServiceRules] = []
    for one in [value] if value.is_text else value.items():
        if one.is_text:
            taken = rule_set(_known_set(one))
            sets.append(taken)
            rules += taken.rules
        elif set(one.mapping()) == {"query"}:
            selects |= _read_query(one.mapping()["query"])
        else:
            rules.append(_read_rule(one))
    if len(rules) > _MOST_RULES:
        raise value.fail(f"{len(rules):,} rules; at most {_MOST_RULES} are accepted")
    return ServiceRules(
        tuple(rules),
        frozenset(selects).union(*(one.selects for one in sets)),
        tuple(name for one in sets for name in one.names),
        frozenset[tuple[str, ...]]().union(*(one.local for one in sets)),
        tuple(item for one in sets for item in one.items),
        tuple(ref for one in sets for ref in one.refs),
        tuple(entry for one in sets for entry in one.matrix),
        frozenset[tuple[str, ...]]().union(*(one.ignore for one in sets)),
        next((one.protobuf for one in sets if one.protobuf.type), ProtobufBodies()),
    )


def _known_set(value: Value) -> str:
    name, known = value.string(), rule_sets()
    if name not in known:
        meant = nearest(name, known)
        hint = f"; did you mean '{meant}'?" if meant else "."
        raise value.fail(f"unknown set of rules '{printable(shortened(name))}'{hint} Sets: {listed(known)}")
    return name


def _read_rule(value: Value) -> Rule:
    optional = ("of", "id", "name", "ok", "query", "has", "to", "why")
    record = value.record(required=("match", "is"), optional=optional)
    method, path, query = _read_match(record["match"])
    kind, part = _read_kind(record["is"])
    variables = {name for name, _ in _VARIABLE.findall(path)} | {one.strip("{}") for _, one in query if "{" in one}
    _check_keys(value, record, kind, part)
    for text in _REFERENCE.findall(part):
        if text not in variables:
            raise record["is"].fail(f"'{{{text}}}' is not in 'match'")
    return Rule(
        method,
        path,
        query,
        _read_query(record["query"]) if "query" in record else _usual_query(kind),
        kind,
        part,
        _read_subject(record["of"], variables) if "of" in record else "",
        _read_id(record["id"], kind) if "id" in record else "",
        _read_name(record["name"], kind) if "name" in record else (),
        _read_success(record["ok"]) if "ok" in record else Success(),
        _read_member(record["has"]) if "has" in record else (),
        _read_subject(record["to"], variables) if "to" in record else "",
        record["why"].string() if "why" in record else "",
    )


def _usual_query(kind: RuleKind) -> frozenset[str]:
    return frozenset((ANY_QUERY,) if kind in (RuleKind.READ, RuleKind.REFUSE) else ())


def _check_keys(value: Value, record: Mapping[str, Value], kind: RuleKind, part: str) -> None:
    """Refuse a rule with keys that its kind has no use for, or without those that it needs."""
    if kind is RuleKind.READ and ("of" in record or part):
        raise value.fail("a read is not logged, so it has no 'of': it goes to the copy here, or to the nearest")
    if kind is RuleKind.ACTION and "of" not in record:
        raise value.fail('\'of\' is missing: what the action is about, such as of: "/{repo}", "$.key" or service')
    if (kind is RuleKind.MOVE) != ("to" in record):
        raise value.fail("a move, and nothing else, has 'to': the new path, such as to: \"/files/{$.path**}\"")
    if kind is RuleKind.MOVE and ("of" in record or part):
        raise value.fail("a move is about what is at the path of the request: it has no 'of', and no part")
    if (kind is RuleKind.REFUSE) != ("why" in record):
        raise value.fail("a rule that refuses requests, and no other, has 'why': a text for the client")


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
    if word not in tuple(RuleKind):
        known = ", ".join(RuleKind)
        raise value.fail(f"expected what a request does: {known}; found '{printable(shortened(word))}'")
    if part and not _PART.fullmatch(part.strip()):
        raise value.fail("the part of a resource has no '*', and at most 60 characters")
    return RuleKind(word), part.strip()


def _read_subject(value: Value, variables: Iterable[str]) -> str:
    """A template of a path: `$.key` becomes `/$.key/{$.key}`, so that it is the same for all rules of a service."""
    text = value.string().strip()
    if text == SERVICE:
        return text
    if _PLACE.fullmatch(text):
        return f"/{text}/{{{text}}}"  # the same for all rules of a service
    if not text.startswith("/"):
        shown = printable(shortened(text))
        raise value.fail(
            f'expected a path such as "/{{bucket}}/{{key}}", a member such as "$.key", or service; found \'{shown}\''
        )
    for name in _REFERENCE.findall(text):
        if name not in variables and not _PLACE.fullmatch(name.removesuffix(MANY)):
            raise value.fail(f"'{{{printable(shortened(name))}}}' is neither in 'match' nor a member such as {{$.key}}")
    return text


def references(template: str) -> tuple[str, ...]:
    """What a template refers to: variables of the rule, and members of the request (`$.key`)."""
    return tuple(_REFERENCE.findall(template))


def fill_in(template: str, values: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: values[found[1]], template)


def _read_query(value: Value) -> frozenset[str]:
    return frozenset(one.string() for one in ([value] if value.is_text else value.items()))


def _read_id(value: Value, kind: RuleKind) -> str:
    text = value.string()
    if kind not in (RuleKind.CREATE, RuleKind.PUT):
        raise value.fail("only the response to a create, or to a put, has a new id")
    if text.lower() == "location":
        return "header:Location"
    if not _JSON_MEMBER.fullmatch(text) and not re.fullmatch(r"header:[\w-]{1,100}|xml:[\w-]{1,100}", text):
        shown = printable(shortened(text))
        raise value.fail(f"expected where a new id is: $.id, Location, header:NAME or xml:ELEMENT; found '{shown}'")
    return text


def _read_name(value: Value, kind: RuleKind) -> tuple[str, ...]:
    text = value.string()
    if kind is not RuleKind.CREATE or not _JSON_MEMBER.fullmatch(text):
        raise value.fail(
            "expected where the body of a create has the name that its client chose, such as $.metadata.name"
        )
    return tuple(text.split(".")[1:])


def _read_member(value: Value) -> tuple[str, ...]:
    text = value.string()
    steps = list(_STEP.finditer(text))
    if not steps or "$" + "".join(step[0] for step in steps) != text:
        raise value.fail(f"expected a member of the body, such as $.id, found '{printable(shortened(text))}'")
    return tuple(step[1] or step[2] for step in steps)


def _read_protobuf(value: Value) -> ProtobufBodies:
    record = value.record(required=("type", "skip", "members"))
    members = record["members"].mapping().items()
    fields = tuple((name, tuple(one.whole(minimum=1, maximum=10_000) for one in at.items())) for name, at in members)
    return ProtobufBodies(record["type"].string(), record["skip"].whole(minimum=0, maximum=100), fields)


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
        elif _JSON_MEMBER.fullmatch(key):
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


# -- where ids are ----------------------------------------------------------------------------------------------


def read_items(value: Value) -> tuple[tuple[str, str], ...]:
    items = []
    for path, at in value.mapping().items():
        item = _read_url_path(at)
        if not _URL_PATH.fullmatch(path):
            raise at.fail(f"'{printable(shortened(path))}' is not a path, such as /images/import")
        if item.split("/").count("{id}") != 1 or not item.endswith("/{id}"):
            raise at.fail(f"'{printable(shortened(item))}' must end with /{{id}}, in place of the id")
        if item.split("/").count("*") > path.split("/").count("*"):
            raise at.fail("it has more * than the path; each * repeats one of the path")
        items.append((path.rstrip("/"), item))
    return tuple(items)


def read_refs(value: Value) -> tuple[tuple[str, str], ...]:
    return tuple((name, _read_url_path(at).rstrip("/")) for name, at in value.mapping().items())


def _read_url_path(value: Value) -> str:
    text = value.string()
    if not _URL_PATH.fullmatch(text):
        raise value.fail(f"expected a path, such as /images, found '{printable(shortened(text))}'")
    return text
