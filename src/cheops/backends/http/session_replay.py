"""Runs an operation that completes a session.

At the site that took it, the session is open: the client's own request completes it. Every other site opens a session
of its own, repeats what was in it, with the handle that its service gives, and completes it. To repeat all of it does
no harm, so an attempt that fails begins again; what it had opened is aborted, if a rule says how.

What was recorded comes from another site. Each request must be what this site's own rules say about a session, and all
must be about the same things as the last one.
"""

import contextlib
import logging
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from cheops.backends.http.credentials import CredentialsError
from cheops.backends.http.existing import Task
from cheops.backends.http.ids import Form, text_to_local
from cheops.backends.http.interpretation import id_at, rule_for
from cheops.backends.http.paths import joined
from cheops.backends.http.payload import PayloadError, Request, check_sendable, header
from cheops.backends.http.rules import check_rules
from cheops.backends.http.sender import OperationSender, ServiceReply, below_base
from cheops.backends.http.session_content import RecordedStep, steps_of
from cheops.config.service_rules import Rule, replace_variable, target_of_rule
from cheops.config.services import ServiceConfig
from cheops.config.session_rules import SessionRole
from cheops.gateway.interfaces import UpstreamError

_log = logging.getLogger(__name__)


class _Checked(NamedTuple):
    """A recorded request, and what the rules of this site say about it."""

    step: RecordedStep
    rule: Rule
    values: dict[str, str]


class _Handle(NamedTuple):
    """The session of this site: its handle, and the path and query where its next request goes, if it was told."""

    text: str
    location: tuple[str, str] | None = None


async def send_session(sender: OperationSender, task: Task, path: str) -> ServiceReply:
    """The response to the request that completes the session, or to the first one that failed. Raises PayloadError,
    and like `OperationSender.send`."""
    steps = steps_of(task.body)
    if task.is_of_client:
        return await sender.send(task.service, task.request, path, steps[-1].body, task.identity)
    first, *others = _checked(task.service, task.request, steps)
    reply = await _send(sender, task, first.step.request, first.step)
    if not _is_done(reply):
        return reply
    assert first.rule.step is not None  # noqa: S101 - `_checked` has looked
    text = str(id_at(first.rule.step.id, reply.headers, reply.body))
    if not text:
        raise PayloadError(f"the service opened a session, and its response has no handle at {first.rule.step.id}")
    handle = _next(task.service, first.rule, _Handle(text), reply)
    try:
        for one in others:
            reply = await _send(sender, task, _with_handle(task.service, one, handle), one.step)
            if not _is_done(reply):
                break
            handle = _next(task.service, one.rule, handle, reply)
    except (UpstreamError, CredentialsError):
        await _abort(sender, task, others[-1], handle)
        raise
    if not _is_done(reply):
        await _abort(sender, task, others[-1], handle)
    return reply


def _is_done(reply: ServiceReply) -> bool:
    return 200 <= reply.status < 300


def _checked(service: ServiceConfig, request: Request, steps: list[RecordedStep]) -> list[_Checked]:
    """Raises PayloadError, ClientError for what is not a session by the rules of this site."""
    found = [_explained(service, request.session, step) for step in steps]
    last = found[-1]
    roles = [one.rule.step.role for one in found if one.rule.step]
    wanted = [SessionRole.OPENS, *[SessionRole.USES] * (len(steps) - 2), SessionRole.COMPLETES]
    if roles != wanted or not _is_same(last.step.request, request):
        raise PayloadError("what it has recorded is not one session: opened, used, and completed by this request")
    for one in found:
        shared = one.values.keys() & last.values.keys()
        if any(one.values[name] != last.values[name] for name in shared):
            raise PayloadError("what it has recorded is about other things than the request that completes the session")
    return found


def _is_same(request: Request, other: Request) -> bool:
    return (request.method, request.path, request.query) == (other.method, other.path, other.query)


def _explained(service: ServiceConfig, session: str, step: RecordedStep) -> _Checked:
    request = step.request
    check_sendable(request)
    check_rules(service, request)
    target = joined(request.path, request.query)
    found = rule_for(service.replication.rules, request.method, target, request.headers)
    if found is None or found[0].step is None or found[0].step.session != session or request.session != session:
        raise PayloadError(
            f"services.{service.name}.rules must be the same at all sites of a resource; those of the site where it "
            f"failed do not say that {request.method} {request.path} belongs to a session '{session}'"
        )
    return _Checked(step, *found)


async def _send(sender: OperationSender, task: Task, request: Request, step: RecordedStep) -> ServiceReply:
    request = msgspec.structs.replace(request, client=task.request.client, scope=task.request.scope)
    path = text_to_local(request.path, sender.local_of, Form.URL)
    return await sender.send(task.service, request, path, step.body, task.identity)


def _with_handle(service: ServiceConfig, one: _Checked, handle: _Handle) -> Request:
    """A recorded request, for the session of this site. Raises PayloadError if the service leads out of the session."""
    request, step = one.step.request, one.rule.step
    assert step is not None  # noqa: S101 - `_checked` has looked
    path, query = replace_variable(one.rule, request.path, request.query, step.session, handle.text)
    if handle.location:
        path, query = handle.location[0], _merged(handle.location[1], query)
    found = rule_for(service.replication.rules, request.method, joined(path, query), request.headers)
    if found is None or found[0] is not one.rule:
        raise PayloadError(f"the service says that its session continues at {path}, which is none by the rules")
    return msgspec.structs.replace(request, path=path, query=query)


def _merged(own: str, recorded: str) -> str:
    """The query that the service gave, and what the client had added to its own."""
    known = {name for name, _ in parse_qsl(own, keep_blank_values=True)}
    added = (part for part in recorded.split("&") if part and part.partition("=")[0] not in known)
    return "&".join((*([own] if own else ()), *added))


def _next(service: ServiceConfig, rule: Rule, handle: _Handle, reply: ServiceReply) -> _Handle:
    location = header(reply.headers, "location")
    if rule.step is None or not rule.step.follows_location or not location:
        return handle
    return handle._replace(location=(below_base(service, location), urlsplit(location).query))


async def _abort(sender: OperationSender, task: Task, last: _Checked, handle: _Handle) -> None:
    """Tell the service that nothing more comes. If that fails, too, the service will find out by itself."""
    name = task.request.session
    rules = (rule for rule in task.service.replication.rules if rule.step)
    rule = next(
        (one for one in rules if one.step and (one.step.session, one.step.role) == (name, SessionRole.ABORTS)), None
    )
    if rule is None:
        return
    try:
        path, query = target_of_rule(rule, {**last.values, name: handle.text})
    except KeyError:
        return
    if handle.location:
        path, query = handle.location[0], _merged(handle.location[1], query)
    request = Request(method=rule.method, path=path, query=query, client=task.request.client, session=name)
    with contextlib.suppress(UpstreamError, CredentialsError):
        reply = await sender.send(task.service, request, path, b"", task.identity)
        _log.info("an incomplete session of %s was aborted: %s", task.service.name, reply.status)
