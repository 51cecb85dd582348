"""Documents that the disk has damaged: reported, never used, and fetched again from sites that have them.

The store verifies each document when it reads it, and refuses to load a resource with a damaged one. The pump tries to
load it again and again, and each attempt comes here. Until all its documents are restored, the resource can be neither
read nor changed at this site, and its state counts as unknown. What other sites have, operations and replies, is as
good as the own copy: its origin has signed it. What belongs to this site alone (what it has applied, operations that
have not run yet) nobody else has: only the operator can help.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from cheops.config.notify import EventKind
from cheops.engine.documents import key_of
from cheops.engine.events import Notify
from cheops.node.document_fetcher import MOST_DOCUMENTS, fetch_documents
from cheops.store.codec import id_of
from cheops.store.interface import DamagedError
from cheops.text import in_words, printable, shortened

if TYPE_CHECKING:
    from cheops.node.node import Node

_MOST_NAMED = 5
_log = logging.getLogger(__name__)
Write = Callable[..., Awaitable[Any]]


class DamagedDocuments:
    """Restores what it can, one attempt per resource at a time. Belongs to the event loop of the node."""

    def __init__(self, node: "Node", write: Write, start_job: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`write` calls something in the thread that owns the store."""
        self._node = node
        self._write = write
        self._start_job = start_job
        self._attempts: set[str] = set()
        self._reported: dict[str, str] = {}  # the last report about a resource

    def restore(self, error: DamagedError) -> None:
        """Begin an attempt, unless one is under way."""
        if error.resource not in self._attempts:
            self._attempts.add(error.resource)
            self._start_job(self._attempt(error.resource, frozenset(error.ids)))

    async def _attempt(self, resource: str, ids: frozenset[str]) -> None:
        try:
            if resource not in self._reported:
                _log.error("stored documents of '%s' are damaged: %s", printable(shortened(resource)), named(ids))
                await self._write(self._node.store.set_unknown, resource)
            missing, sources = set(ids), []
            for site in self._sites(resource):
                found = await fetch_documents(self._node, site, resource, sorted(missing)[:MOST_DOCUMENTS])
                if found:
                    await self._write(self._node.store.rewrite, found)
                    missing -= {id_of(key_of(document)) for document in found}
                    sources.append(site)
                if not missing:
                    break
            self._report(resource, ids, missing, sources)
        finally:
            self._attempts.discard(resource)

    def _sites(self, resource: str) -> list[str]:
        """Sites that may have its documents and are up; of an unreadable resource the store still knows them."""
        up = self._node.mesh.up
        return [site for site in self._node.store.sites_of(resource) if site != self._node.name and site in up]

    def _report(self, resource: str, ids: Iterable[str], missing: Iterable[str], sources: Iterable[str]) -> None:
        """Once for each outcome: an attempt is made every few seconds."""
        if missing := sorted(missing):
            text = f"damaged, and at no site that is up: {named(missing)}"
        else:
            text = f"damaged, and fetched again from {in_words(sources)}: {named(ids)}"
        if self._reported.get(resource) != text:
            _log.log(logging.ERROR if missing else logging.WARNING, "'%s': %s", printable(shortened(resource)), text)
            self._node.notifier.report(Notify(resource, EventKind.DAMAGED, None, text, text))
        if missing:
            self._reported[resource] = text
        else:
            self._reported.pop(resource, None)


_KINDS = {
    "op": "operation",
    "reply": "reply",
    "ledger": "what this site has applied",
    "started": "which run has begun",
    "proof": "proof against a site",
}


def named(ids: Iterable[str]) -> str:
    """What documents are about, for an operator: `operation site1:3`."""
    shown = sorted(ids)
    words = [_named(id_) for id_ in shown[:_MOST_NAMED]]
    return ", ".join(words) + (f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else "")


def _named(id_: str) -> str:
    kind, *rest = id_.split("/")
    about = f" {rest[1]}:{rest[3]}" if kind in ("op", "reply") and len(rest) == 4 else ""
    return printable(f"{_KINDS.get(kind, kind)}{about}")
