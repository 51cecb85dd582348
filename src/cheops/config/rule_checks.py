"""Mistakes in the rules of a service that can be seen without a request: each would make a rule mean something else
than its author wrote, or nothing at all."""

import re
from collections.abc import Iterable, Mapping, Sequence

from cheops.config.request_rules import SAFE_METHODS
from cheops.config.service_rules import MANY, SERVICE, VARIABLE, Rule, RuleKind, references
from cheops.config.session_rules import SessionRole, SessionStep
from cheops.text import in_words, printable, shortened
from cheops.yaml_file import Value

_HEADER = re.compile(r"[\w-]{1,100}")
_QUERY_VALUE = re.compile(r"\{[a-z][a-z_]*\}|[^{}]*")


def check_match(value: Value, path: str, query: Sequence[tuple[str, str]]) -> None:
    """Raises YamlFileError for a pattern that matches nothing, or for which one request could take minutes."""
    parts = path.split("/")[1:]
    if any(part in (".", "..") for part in parts) or "" in parts[:-1]:
        raise value.fail("no request has this path: one of its parts is empty, '.' or '..'")
    if path.count(MANY) > 1:
        raise value.fail("it has more than one **; one stands for any number of parts")
    if any(len(VARIABLE.findall(part)) > 1 for part in parts):
        raise value.fail("a part of a path has at most one variable: nobody could say where the one ends")
    names = [name for name, _ in query]
    if len(set(names)) < len(names):
        raise value.fail("a member of the query is there twice")
    if wrong := next((one for _, one in query if not _QUERY_VALUE.fullmatch(one)), None):
        raise value.fail(f"the value of a query member is a text or a variable {{name}}, not '{shown(wrong)}'")
    variables = [name for name, _ in VARIABLE.findall(path)] + [one.strip("{}") for _, one in query if "{" in one]
    if len(set(variables)) < len(variables):
        raise value.fail("a variable is there twice")


def check_header(value: Value) -> str:
    """The name of a header."""
    text = value.string()
    if not _HEADER.fullmatch(text):
        raise value.fail(f"expected the name of a header, such as X-Copy-From, found '{shown(text)}'")
    return text


def check_template(value: Value, text: str) -> None:
    """Raises YamlFileError for a template of a path that would be the same for two resources."""
    parts = text.split("/")[1:]
    if any(part in ("", ".", "..") for part in parts) or re.search(r"[?#%\s]", text):
        raise value.fail(
            f"expected a path without a query, and without empty parts, '.' or '..'; found '{shown(text)}'"
        )
    if any(len(references(part)) > 1 for part in parts):
        raise value.fail(
            "a part of a path refers to one thing at most: with two, 'a' and 'bc' would be the same as 'ab' and 'c'"
        )


def check_kind(record: Mapping[str, Value], method: str, kind: RuleKind, of: str, step: SessionStep | None) -> None:
    """Raises YamlFileError for keys that would have no effect."""
    if method in SAFE_METHODS and kind is not RuleKind.READ and step is None:
        raise record["is"].fail(f"{method} is a read, whatever a rule says: it cannot be replicated or refused")
    if kind in (RuleKind.READ, RuleKind.REFUSE):
        for key in ("ok", "after", "name"):
            if key in record:
                raise record[key].fail(f"it has no effect: what is: {kind.value} is not an operation")
    if of == SERVICE and "after" in record:
        raise record["after"].fail("it has no effect: with of: service everything has one order")
    if kind is RuleKind.CREATE and "name" in record and of:
        raise record["of"].fail("a create has 'name' or 'of', not both")


def check_together(rules: Sequence[Rule], values: Iterable[Value | None]) -> None:
    """Raises YamlFileError for rules that do not go together; `values` are where they are written, None for those of
    another set."""
    for place, (rule, value) in enumerate(zip(rules, values, strict=True)):
        if value is None:
            continue
        if before := next((one for one in rules[:place] if _covers(one, rule)), None):
            raise value.fail(f"'{rule}' is never used: '{before}' comes before it, and matches all of its requests")
        if rule.step is not None:
            _check_session(rule.step, value, rules)


def _check_session(step: SessionStep, value: Value, rules: Iterable[Rule]) -> None:
    roles = {one.step.role for one in rules if one.step and one.step.session == step.session}
    missing = [role.value for role in (SessionRole.OPENS, SessionRole.COMPLETES) if role not in roles]
    if missing:
        raise value.fail(f"no rule {in_words(missing)} a session '{step.session}'")


def _covers(before: Rule, rule: Rule) -> bool:
    """Whether a rule matches every request that another one matches."""
    if before.has or (before.header and before.header.lower() != rule.header.lower()):
        return False
    if before.method not in ("*", rule.method):
        return False
    required, allowed = dict(rule.query), {name for name, _ in rule.query} | rule.selects
    if any(name not in required or (one and "{" not in one and required[name] != one) for name, one in before.query):
        return False
    known = {name for name, _ in before.query} | before.selects
    return before.takes_any_query(frozenset(allowed - known)) and all(
        before.has_path(path) for path in _samples(rule.path)
    )


def _samples(path: str) -> Iterable[str]:
    """Paths that a pattern matches, with texts for its variables that nobody would write."""
    parts = [part if part in ("*", MANY) else VARIABLE.sub("\x01\\2", part) for part in path.split("/")]
    for many in ("\x01", "\x01/\x02/\x03"):
        yield "/".join({"*": "\x01", MANY: many}.get(part) or part.replace(f"\x01{MANY}", many) for part in parts)


def shown(text: str) -> str:
    return printable(shortened(text))
