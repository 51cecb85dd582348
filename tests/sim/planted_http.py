"""Defects that HTTP replication once had, most of them found then with real applications."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

from cheops.backends.http import backend, changes, interpreter
from cheops.backends.http.copies import Copies, Copy
from cheops.backends.http.exclusion import Exclusion
from cheops.backends.http.interpretation import Meaning, meaning_of
from cheops.backends.http.payload import Request, operation_type
from cheops.backends.http.sender import OperationSender
from cheops.config.service_rules import Rule, ServiceRules
from cheops.config.services import ServiceConfig


@contextmanager
def posts_are_resources() -> Iterator[None]:
    """A POST of which nothing says what it is about becomes a resource of its own: it has no order with any other."""

    def meaning(rules: ServiceRules, method: str, *more: Any, **options: Any) -> Meaning | None:
        return None if method == "POST" else meaning_of(rules, method, *more, **options)

    def new_copy(self: OperationSender, service: ServiceConfig, meta_id: str, request: Request, *more: Any) -> Copy:
        found = true_copy(self, service, meta_id, request, *more)
        return found or Copy(meta_id, service.name, request.item, meta_id)

    true_copy = OperationSender.new_copy
    with (
        patch.object(interpreter, "meaning_of", meaning),
        patch.object(interpreter, "refuse_unexplained", lambda *_: None),
        patch.object(backend, "check_meaning", lambda *_: None),
        patch.object(OperationSender, "new_copy", new_copy),
    ):
        yield


def queries_are_ignored() -> AbstractContextManager[object]:
    """`PUT o?tagging` is a PUT of `o`, which supersedes the one that had the content."""

    def matching(
        self: ServiceRules, method: str, path: str, _query: str, *more: Any, **options: Any
    ) -> Iterator[tuple[Rule, dict[str, str]]]:
        return true(self, method, path, "", *more, **options)

    true = ServiceRules.matching
    return patch.object(ServiceRules, "matching", matching)


def parts_are_ordered() -> AbstractContextManager[object]:
    """A PUT to a sub-path does not replace an earlier one to the same sub-path."""

    def type_(method: str, sub_path: str, content_type: str) -> str:
        return f"send {sub_path}" if sub_path else operation_type(method, sub_path, content_type)

    return patch.object(changes, "operation_type", type_)


@contextmanager
def resources_have_no_order() -> Iterator[None]:
    """What one client does to a parent and then to a child runs elsewhere as it comes."""

    async def none_above(*_: object) -> str:
        return ""

    with patch.object(changes, "touched", lambda *_: []), patch.object(backend, "unnamed_above", none_above):
        yield


@contextmanager
def deletions_forget_contents() -> Iterator[None]:
    """A deletion of a collection says nothing about what it contains, and nobody reports what it took with it."""

    async def nothing(*_: object, **__: object) -> None:
        return None

    async def is_not_deleted(*_: object) -> bool:
        return False

    with patch.object(backend, "report_lost", nothing), patch.object(backend, "is_deleted_with", is_not_deleted):
        yield


def all_is_sent_at_once() -> AbstractContextManager[object]:
    """A service may have a change, and the deletion of what contains it, at the same time."""

    @asynccontextmanager
    async def held(*_: object) -> AsyncIterator[None]:
        yield

    return patch.object(Exclusion, "held", held)


def creations_are_not_noted() -> AbstractContextManager[object]:
    """A deletion passes over a service that may have done a creation, and has not answered."""
    return patch.object(Copies, "may_have_created", lambda *_: False)
