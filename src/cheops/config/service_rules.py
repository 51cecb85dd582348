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

Requests that make one change together are a session: see cheops.config.session_rules.

In `match`, `{name}` and `*` stand for one part of the path, `{name**}` and `**` for one or more. A query member that is
not named must not be there, unless `query` lists it: a query is part of what a request is about. A rule with `has`
matches only if the body has that member. `{id}` is an id that the service gave; other names are chosen by clients.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from urllib.parse import parse_qsl, quote

from cheops.config.session_rules import SessionStep
from cheops.log.matrix import Entry

SERVICE = "service"  # `of: service`: one order for everything that the service does
REPLICANTS = "replicants"  # `is: read, of: replicants`: with '&', what is not replicated is not there
ANY_QUERY = "*"
MANY = "**"  # a variable, or a member of the body, that is several parts of a path
VARIABLE = re.compile(r"\{([a-z][a-z_]*)(\*\*)?\}")
_ID = "id"  # the variable that stands for an id that the service gave
_REFERENCE = re.compile(r"\{([^{}]+)\}")


class RuleKind(StrEnum):
    """What a request does."""

    READ = "read"
    CREATE = "create"
    PUT = "put"
    PATCH = "patch"
    DELETE = "delete"
    ACTION = "action"
    MOVE = "move"  # gives it another name
    REFUSE = "refuse"  # no other site could do the same: with '&', and if it is about a replicant
    SESSION = "session"  # a request of a session that is not complete yet; see cheops.config.session_rules


@dataclass(frozen=True, slots=True)
class Success:
    """When a response means that the request was done; by default if its status is 2xx or 303."""

    statuses: frozenset[int] = frozenset()
    header: tuple[tuple[str, str], ...] = ()  # names, and a text that each has in it
    has: tuple[str, ...] = ()  # texts of the body
    lacks: tuple[str, ...] = ()
    members: tuple[tuple[tuple[str, ...], str], ...] = ()  # of a JSON body, and their values as JSON


_REPLACING = (RuleKind.PUT, RuleKind.PATCH, RuleKind.DELETE)


@dataclass(frozen=True, slots=True)
class Rule:
    """What the requests are about that it matches."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()  # members that must be there; "{x}" names their value, "": see `match`
    selects: frozenset[str] = frozenset()  # members that may be there, and change nothing of what it is about
    kind: RuleKind = RuleKind.READ
    part: str = ""  # of the resource: the `tagging` of an object
    of: str = ""  # the resource: a template of its path, `service`, or empty for the path of the request
    id: str = ""  # where the response to a create has the new id; empty: as the service says
    name: tuple[str, ...] = ()  # where the body of a create has the name that its client chose
    ok: Success = field(default_factory=Success)
    step: SessionStep | None = None  # its place in a session
    header: str = ""  # it matches only requests with this header
    has: tuple[str, ...] = ()  # a member of the body without which it does not match
    after: tuple[str, ...] = ()  # templates of the paths of other resources that must be there first
    to: str = ""  # of a move: a template of the new path
    why: str = ""  # it is refused, and what to do instead

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

    @property
    def names_by_request(self) -> bool:
        """Whether something else than the path says what a request is about."""
        templates = (self.of, self.to, *self.after)
        places = (one for template in templates for one in references(template))
        return bool(self.has or self.name) or any(one[0] == "$" or ":" in one for one in places)

    @property
    def in_path(self) -> frozenset[str]:
        """The variables of the path. Their values are spelled as they stand there, percent-encoded."""
        return frozenset(_pattern(self.path).groupindex)

    def match(self, method: str, path: str, query: str, *, any_query: bool = False) -> dict[str, str] | None:
        """What its variables stand for in a request, or None if it does not match. `path` in its one spelling. With
        `any_query`, whatever else is in the query, and how often."""
        if self.method not in ("*", method):
            return None
        found = _pattern(self.path).fullmatch(path)
        if found is None:
            return None
        members = parse_qsl(query, keep_blank_values=True)
        given, values = dict(members), dict(found.groupdict())
        named = [name for name, _ in members if not self._selects_any or name in dict(self.query)]
        if len(set(named)) < len(named) and self.kind is not RuleKind.REFUSE and not any_query:
            return None  # one is there twice, and services differ in which one counts
        for name, value in self.query:
            if name not in given or (value and not value.startswith("{") and given[name] != value):
                return None
            if not value and given[name] and self.kind in _REPLACING:
                return None  # `?lang=fr` and `?lang=de` may be two parts: one must not replace the other
            if value.startswith("{"):
                values[value.strip("{}")] = given[name]
        others = given.keys() - {name for name, _ in self.query}
        return values if any_query or self._selects_any or others <= self.selects else None

    def has_path(self, path: str) -> bool:
        return _pattern(self.path).fullmatch(path) is not None

    def takes_any_query(self, names: frozenset[str]) -> bool:
        """Whether it matches also with these members of a query, which it does not name."""
        return self._selects_any or not names

    @property
    def _selects_any(self) -> bool:
        return ANY_QUERY in self.selects


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
    errors: str = ""  # the shape of errors of Cheops that their clients understand

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def know_path(self, path: str) -> bool:
        """Whether a rule is about requests with this path."""
        return any(rule.has_path(path) for rule in self.rules)

    @property
    def is_whole(self) -> bool:
        """Whether everything that the service does has one order: then it is one resource."""
        return any(rule.of == SERVICE for rule in self.rules)

    @property
    def need_all_requests(self) -> bool:
        """Whether any request may concern what is replicated, also at a site that has nothing of it yet: it may belong
        to a session, or its body may have the id of a resource."""
        return any(rule.step or (rule.is_of_service_id and "{$." in rule.of) for rule in self.rules)

    def matching(
        self, method: str, path: str, query: str, headers: Iterable[tuple[str, str]] = (), *, any_query: bool = False
    ) -> Iterator[tuple[Rule, dict[str, str]]]:
        """The rules that fit a request, in their order, up to the first that needs no member of its body. Some programs
        read a `_` in the name of a header as `-`."""
        names = {name.lower().replace("_", "-") for name, _ in headers}
        for rule in self.rules:
            if rule.header and rule.header.lower().replace("_", "-") not in names:
                continue
            values = rule.match(method, path, query, any_query=any_query)
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
    for found in VARIABLE.finditer(part):
        text = "[^/]+(?:/[^/]+)*" if found[2] else "[^/]+"
        out += [re.escape(part[done : found.start()]), f"(?P<{found[1]}>{text})"]
        done = found.end()
    return "".join([*out, re.escape(part[done:])])


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
    path = VARIABLE.sub(lambda found: values[found[1]], rule.path)
    members = ((name, values[one.strip("{}")] if one.startswith("{") else one) for name, one in rule.query)
    return path, "&".join(f"{name}={quote(one, safe='')}" if one else name for name, one in members)


def references(template: str) -> tuple[str, ...]:
    """What a template refers to: variables of the rule, and members of the request (`$.key`)."""
    return tuple(_REFERENCE.findall(template))


def fill_in(template: str, values: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda found: values[found[1]], template)
