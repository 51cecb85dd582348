"""How much of the disk the files of a site take: for `/metrics`, `cheops check` and `cheops status`."""

import asyncio

from msgspec import Struct

from cheops.api.models.resources import SpaceUse
from cheops.api.models.site import Check, make_check
from cheops.backends.http import backend as http
from cheops.backends.http import sessions
from cheops.node.node import FILES, Node
from cheops.notify import notifier
from cheops.security import audit
from cheops.store.space import Space, database_bytes, file_bytes, folder_bytes


class DiskUsage(Struct, frozen=True):
    """In bytes."""

    store: Space
    files: int  # that operations brought along, and bodies of requests
    journal: int  # of events
    replicas: int  # ids of replicated resources
    audit: int

    @property
    def total(self) -> int:
        return self.store.file + self.store.log + self.files + self.journal + self.replicas + self.audit

    def kinds(self) -> dict[str, int]:
        """What `cheops_store_bytes` has. `live` is what the store needs; tombstones are a part of it."""
        return {
            "live": self.store.file - self.store.free,
            "free": self.store.free,
            "wal": self.store.log,
            "files": self.files,
            "journal": self.journal,
            "replicas": self.replicas,
            "audit": self.audit,
        }


async def disk_usage(node: Node, *, is_brief: bool = False) -> DiskUsage:
    """`is_brief`: without the numbers of documents."""
    return await asyncio.to_thread(_disk_usage, node, is_brief)


def _disk_usage(node: Node, is_brief: bool) -> DiskUsage:
    data = node.config.data
    return DiskUsage(
        node.store.space(is_brief=is_brief),
        folder_bytes(data / FILES) + folder_bytes(data / sessions.FOLDER),
        database_bytes([data / notifier.FILE]),
        database_bytes([data / http.FILE]),
        file_bytes(*data.glob(f"{audit.FILE}*")),
    )


def space_use(usage: DiskUsage) -> SpaceUse:
    store = usage.store
    return SpaceUse(
        total=usage.total,
        live=store.live,
        dead=store.dead,
        free=store.free,
        wal=store.log,
        files=usage.files,
        journal=usage.journal,
        replicas=usage.replicas,
        audit=usage.audit,
        documents=store.documents,
        deleted=store.dead_resources,
    )


async def usage_check(node: Node) -> Check:
    return make_check("store", "disk usage", space_use(await disk_usage(node)).in_words())
