"""What becomes of a request, in words: its rule, its resource and its operation. `cheops scope rules --try` prints
these facts without an agent, and a dry run of the gateway returns them."""

from collections.abc import Iterable
from typing import Any

from cheops.backends.http.ids import is_meta_id
from cheops.backends.http.interpretation import NO_OPERATIONS, WHOLE, Meaning, rule_for, unexplained_members
from cheops.backends.http.paths import collection_of, filled, joined, split_target, trimmed
from cheops.backends.http.payload import Request, decode_response, header, operation_type, request_of
from cheops.backends.http.request import Target
from cheops.backends.http.rules import check_rules
from cheops.config.request_rules import SAFE_METHODS
from cheops.config.service_rules import Rule, RuleKind, ServiceRules
from cheops.config.services import ServiceConfig
from cheops.config.session_rules import SessionRole
from cheops.errors import CheopsError, ClientError
from cheops.gateway.headers import RequestHead
from cheops.log.operation import Command
from cheops.text import shortened


def explained(
    service: ServiceConfig,
    head: RequestHead,
    meaning: Meaning | None,
    target: Target | None = None,
    body: bytes | None = None,
) -> dict[str, Any]:
    """The facts. `meaning` is what a rule says. If no rule does, `target` is the replicant that the path leads to, as
    far as that is known."""
    facts = _facts(service, head, meaning, target)
    if meaning is None and head.method not in SAFE_METHODS:
        rules = service.replication.rules
        if near := rule_for(rules, head.method, head.target, head.headers, body, any_query=True):
            facts["meaning"] = _but_for_query(near[0])
    if head.method not in SAFE_METHODS and (meaning is None or meaning.kind not in NO_OPERATIONS):
        try:
            check_rules(service, Request(method=head.method, path=split_target(head.target)[0]))
        except ClientError as error:
            facts["refused"] = str(error)
    return facts


def _facts(service: ServiceConfig, head: RequestHead, meaning: Meaning | None, target: Target | None) -> dict[str, Any]:
    settings, data = service.replication, {"request": f"{head.method} {head.target}"}
    if meaning is None or meaning.rule is None:
        facts: dict[str, Any] = {**data, "rule": None}
        if target is not None and head.method not in SAFE_METHODS:
            type_ = operation_type(head.method, target.sub_path, header(head.headers, "content-type"))
            facts |= {
                "resource": target.item if target.is_named else filled(target.item, target.meta_id),
                "id": target.meta_id,
                "operation": type_,
                "replaces": list(settings.matrix.wiped_by(type_)),
            }
        return {**facts, "meaning": _plain(head, settings.rules)}
    rule = meaning.rule
    facts = {**data, "rule": str(rule), "does": rule_does(rule) if rule.step else meaning.kind.value}
    if rule.kind is RuleKind.SESSION:
        return {**facts, "meaning": _session(rule)}
    if rule.kind is RuleKind.REFUSE:
        return {**facts, "meaning": f"with '&', and for what is replicated, it is refused (422): {rule.why}"}
    if meaning.kind is RuleKind.READ:
        return {**facts, "meaning": "it changes nothing: it goes to one site, and is not logged"}
    name = meaning.item or "an id that the service gives"
    return {
        **facts,
        "does": meaning.kind.value,
        "resource": "the whole service" if meaning.item == WHOLE else name,
        "id": meaning.meta_id(service.name) if meaning.item else None,
        "moved to": meaning.to or None,
        "operation": meaning.type,
        "replaces": list(settings.matrix.wiped_by(meaning.type)),
        **({"after": list(meaning.after)} if meaning.after else {}),
        **({"meaning": _session(rule)} if rule.step else {}),
    }


def rule_does(rule: Rule) -> str:
    """What the requests of a rule do, in the words of the configuration."""
    kind = f"{rule.kind.value} {rule.part}".strip()
    if rule.step is None:
        return kind
    done = f"{rule.step.role.value} {rule.step.session}"
    return f"{kind}, {done}" if rule.step.role is SessionRole.COMPLETES else done


def _session(rule: Rule) -> str:
    """What becomes of a request of a session."""
    assert rule.step is not None  # noqa: S101 - its caller has looked
    name = rule.step.session
    texts = {
        SessionRole.OPENS: f"it opens a session '{name}', at one site: the handle is {rule.step.id} of the response. "
        "Nothing is replicated before the session is complete",
        SessionRole.USES: f"it uses a session '{name}', at the site where that is open, and is recorded. Its handle is "
        f"{{{name}}} of the rule",
        SessionRole.ABORTS: f"it aborts a session '{name}': nothing of it is replicated",
        SessionRole.COMPLETES: f"it completes a session '{name}': this is one operation. Other sites repeat the "
        "session, with handles of their own",
    }
    return texts[rule.step.role]


def _but_for_query(rule: Rule) -> str:
    return (
        f"'{rule}' does not list all members of its query, or one is there twice: with '&', and for what is "
        "replicated, it is refused (422)"
    )


def _plain(head: RequestHead, rules: ServiceRules) -> str:
    if head.method in SAFE_METHODS:
        return "plain REST: it reads"
    if rules.is_whole:
        return "no rule explains it, and everything that this service does has one order: with '&' it is refused (422)"
    if head.method != "POST" and unexplained_members(rules, head.target):
        return "no rule explains its query: with '&', and for what is replicated, it is refused (422)"
    kinds = {
        "POST": "plain REST: it creates something in this collection, with an id in the response; below a replicant, "
        "an action on it",
        "PUT": "plain REST: it replaces what is at this path",
        "PATCH": "plain REST: it changes members of what is at this path",
        "DELETE": "plain REST: it deletes what is at this path",
    }
    return kinds.get(head.method, "plain REST: it is ordered with all other changes of what is at this path")


def without_id(service: ServiceConfig, request: Request, site: str, *, is_of_client: bool) -> str:
    """Why a POST whose response names no id is not replicated, and the line to add. Nobody could change or delete the
    copy later, and no other site knows what belongs together."""
    config, line = f"services.{service.name}", f"{request.method} {request.path}"
    place = ".".join(("$", *service.replication.id)) if service.replication.id else "Location"
    done = "ran at this site only and is not replicated" if is_of_client else f"ran at {site}"
    path = trimmed(request.path)
    of = collection_of(path) if collection_of(path) != WHOLE else path
    return (
        f"{line} {done}: the response of the service names no id ({place} of {config}.id, or a Location). If it "
        f"creates something, say where its id or name is. Otherwise add a rule to {config}.rules at all sites: "
        f'{{match: "{line}", is: action, of: "{of}"}} if it changes what is at {of} (`of` is the path of what it '
        f'changes, or a member of the body, "$.key"), or {{match: "{line}", is: read}} if it changes nothing'
    )


def child_without_id(service: ServiceConfig, request: Request) -> str:
    """Why a POST below a replicant is not replicated if its response names an id, and the lines to add."""
    config, path = f"services.{service.name}", trimmed(request.path)
    segments = ["*" if is_meta_id(one) else one for one in path.split("/")]
    collection, match = "/".join(segments), _path_template(segments)
    of = match.rpartition("/")[0]
    return (
        f"{request.method} {request.path} ran at this site only and is not replicated: the service gave what it "
        f"created an id, and at each site that would be another one. Add where it is found to {config}.items, at "
        f'all sites: {{"{collection}": "{collection}/{{id}}"}}. If no later request has that id, add a rule to '
        f'{config}.rules instead: {{match: "{request.method} {match}", is: action, of: "{of}"}}'
    )


def _path_template(segments: Iterable[str]) -> str:
    """A path in which a variable stands for each `*`."""
    names = iter("abcdefghijklmnopqrstuvwxyz")
    return "/".join(f"{{{next(names)}}}" if one == "*" else one for one in segments)


def response_text(output: str) -> str:
    """What a service answered, for people; any other text as it is."""
    kept = decode_response(output)
    return f"the service answers {kept.status}: {kept.note or shortened(kept.text.strip(), 200)}" if kept else output


def request_text(command: Command) -> str:
    """The first line of the request that an operation sends; any other text as it is."""
    try:
        request = request_of(command)
    except CheopsError:
        return command.line
    return (
        "a base for PATCHes, which sends nothing"
        if request.base
        else f"{request.method} {joined(request.path, request.query)}"
    )
