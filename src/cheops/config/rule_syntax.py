"""How the rules of a service are written in YAML: in the configuration, and in the sets that come with Cheops.

What each key means is in docs/replication.md, and in cheops.config.service_rules.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from cheops.config.body_members import read_items, read_members, read_refs
from cheops.config.rule_checks import check_header, check_kind, check_match, check_template, check_together
from cheops.config.service_rules import (
    ANY_QUERY,
    MANY,
    REPLICANTS,
    SERVICE,
    VARIABLE,
    ProtobufBodies,
    Rule,
    RuleKind,
    ServiceRules,
    Success,
    references,
)
from cheops.config.session_rules import OPTIONS, SessionRole, SessionStep, read_step
from cheops.config.values import ValueType, choice
from cheops.matrix_file import matrix_within
from cheops.text import listed, nearest, printable, shortened
from cheops.yaml_file import Value, parse_yaml

ERRORS = choice(("problem", "openstack", "kubernetes", "s3", "plain"), str)
_METHOD = re.compile(r"[A-Z]{1,32}|\*")
_PLACE = re.compile(r"\$(?:\.[A-Za-z_][\w-]*){1,8}|(?:query|form|header|xml):[\w.-]{1,100}")
_JSON_MEMBER = re.compile(r"\$(\.[A-Za-z_][\w-]*){1,8}")
_STEP = re.compile(r'\.([A-Za-z_][\w-]*)|\["([^"\]]{1,100})"\]')  # names with other characters: $["m.relates_to"]
_PART = re.compile(r"[^\s*][^*]{0,60}")
_MOST_RULES = 500
_STATED = tuple(kind for kind in RuleKind if kind is not RuleKind.SESSION)  # what `is` may say


def rule_sets() -> tuple[str, ...]:
    """The names of the sets that come with Cheops."""
    files = resources.files("cheops.rules").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


@cache
def rule_set(name: str) -> ServiceRules:
    """A set that comes with Cheops."""
    file = resources.files("cheops.rules") / f"{name}.yaml"
    optional = ("query", "local", "items", "refs", "matrix", "ignore", "protobuf", "errors")
    root = parse_yaml(file.read_text(), f"rules/{name}.yaml").record(required=("rules",), optional=optional)
    rules = tuple(_read_rule(one) for one in root["rules"].items())
    check_together(rules, root["rules"].items())
    return ServiceRules(
        rules,
        _read_query(root["query"]) if "query" in root else frozenset(),
        (name,),
        read_members(root["local"]) if "local" in root else frozenset(),
        read_items(root["items"]) if "items" in root else (),
        read_refs(root["refs"]) if "refs" in root else (),
        matrix_within(root["matrix"]).matrix.entries if "matrix" in root else (),
        read_members(root["ignore"]) if "ignore" in root else frozenset(),
        _read_protobuf(root["protobuf"]) if "protobuf" in root else ProtobufBodies(),
        ERRORS.read(root["errors"]) if "errors" in root else "",
    )


def _read_rules(value: Value) -> ServiceRules:
    rules: list[Rule] = []
    values: list[Value | None] = []
    selects: set[str] = set()
    sets: list[ServiceRules] = []
    for one in [value] if value.is_text else value.items():
        if one.is_text:
            taken = rule_set(_known_set(one))
            sets.append(taken)
            rules += taken.rules
            values += [None] * len(taken.rules)
        elif set(one.mapping()) == {"query"}:
            selects |= _read_query(one.mapping()["query"])
        else:
            rules.append(_read_rule(one))
            values.append(one)
    if len(rules) > _MOST_RULES:
        raise value.fail(f"{len(rules):,} rules; at most {_MOST_RULES} are accepted")
    check_together(rules, values)
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
        next((one.errors for one in sets if one.errors), ""),
    )


def _known_set(value: Value) -> str:
    name, known = value.string(), rule_sets()
    if name not in known:
        meant = nearest(name, known)
        hint = f"; did you mean '{meant}'?" if meant else "."
        raise value.fail(f"unknown set of rules '{printable(shortened(name))}'{hint} Sets: {listed(known)}")
    return name


def _read_rule(value: Value) -> Rule:
    options = ("is", "of", "id", "name", "ok", "query", "header", "has", "after", "to", "why", *OPTIONS)
    record = value.record(required=("match",), optional=options)
    method, path, query = _read_match(record["match"])
    variables = {name for name, _ in VARIABLE.findall(path)} | {one.strip("{}") for _, one in query if "{" in one}
    step = read_step(record, variables)
    kind, part = _kind_of(value, record, step)
    of = _read_subject(record["of"], variables) if "of" in record else ""
    check_kind(record, method, kind, of, step)
    _check_subject(value, record, kind, part, of)
    _check_keys(value, record, kind)
    for text in references(part):
        if text not in variables:
            raise record["is"].fail(f"'{{{text}}}' is not in 'match'")
    return Rule(
        method,
        path,
        query,
        _read_query(record["query"]) if "query" in record else _usual_query(kind),
        kind,
        part,
        of,
        _read_id(record["id"], kind) if "id" in record and not step else "",
        _read_name(record["name"], kind) if "name" in record else (),
        _read_success(record["ok"]) if "ok" in record else Success(),
        step,
        check_header(record["header"]) if "header" in record else "",
        _read_member(record["has"]) if "has" in record else (),
        tuple(_read_subject(one, variables) for one in record["after"].items()) if "after" in record else (),
        _read_subject(record["to"], variables) if "to" in record else "",
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
        if step and "has" in record:
            raise record["has"].fail("a request of a session is known by its path, query and headers")
        return kind, part
    for key in ("is", "of", "name", "ok", "after", "why", "header", "has", "to"):
        if key in record:
            raise record[key].fail("it belongs to the rule that completes the session: only then something is changed")
    return RuleKind.SESSION, ""


def _usual_query(kind: RuleKind) -> frozenset[str]:
    """The query members of a rule that lists none: of what is not replicated, all."""
    return frozenset((ANY_QUERY,) if kind in (RuleKind.READ, RuleKind.REFUSE) else ())


def _check_subject(value: Value, record: Mapping[str, Value], kind: RuleKind, part: str, of: str) -> None:
    """Refuse a rule that is about something that its kind cannot be about."""
    if (of == REPLICANTS) > (kind is RuleKind.READ):
        raise record["of"].fail("only a read is 'of: replicants'")
    if kind is RuleKind.READ and (of not in ("", REPLICANTS) or part):
        raise value.fail("a read is not logged, so it has no 'of': it goes to the copy here, or to the nearest")
    if kind is RuleKind.ACTION and not of:
        raise value.fail('\'of\' is missing: what the action is about, such as of: "/{repo}", "$.key" or service')
    if kind is RuleKind.MOVE and (of or part):
        raise value.fail("a move is about what is at the path of the request: it has no 'of', and no part")
    if kind is RuleKind.REFUSE and of == SERVICE:
        raise record["of"].fail("what is refused is about some resources: leave 'of' out, or give their paths")


def _check_keys(value: Value, record: Mapping[str, Value], kind: RuleKind) -> None:
    """Refuse a rule with keys that its kind has no use for, or without those that it needs."""
    if (kind is RuleKind.MOVE) != ("to" in record):
        raise value.fail("a move, and nothing else, has 'to': the new path, such as to: \"/files/{$.path**}\"")
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
    if "{" in VARIABLE.sub("", path) or "}" in VARIABLE.sub("", path):
        raise value.fail("a variable is written {name} or {name**}, with small letters and _")
    members = tuple((name, one) for name, _, one in (part.partition("=") for part in query.split("&") if part))
    check_match(value, path, members)
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
        return f"/{text}/{{{text}}}"  # the same for all rules of a service
    if not text.startswith("/"):
        shown = printable(shortened(text))
        raise value.fail(
            f'expected a path such as "/{{bucket}}/{{key}}", a member such as "$.key", or service; found \'{shown}\''
        )
    for name in references(text):
        if name not in variables and not _PLACE.fullmatch(name.removesuffix(MANY)):
            raise value.fail(f"'{{{printable(shortened(name))}}}' is neither in 'match' nor a member such as {{$.key}}")
    check_template(value, text)
    return text


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
