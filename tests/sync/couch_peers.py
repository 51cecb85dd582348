"""Databases that are not ours, for tests of the protocol: PouchDB in a process of its own, and a real CouchDB."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.npm import installed
from tests.sync.couch_lab import Json, Site, serving

SOURCE = Path(__file__).parent / "pouchdb"
COUCHDB = "CHEOPS_TEST_COUCHDB_URL"
KINDS = ["ours", "pouchdb", *(["couchdb"] if COUCHDB in os.environ else [])]  # a real one where there is one


def installed_packages(config: pytest.Config) -> Path:
    return installed(config, SOURCE, "pouchdb")


@contextlib.asynccontextmanager
async def node(packages: Path, mode: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The script, until the end of its standard input."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(SOURCE / "peer.js"),
        mode,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "NODE_PATH": str(packages), "NODE_NO_WARNINGS": "1"},
        limit=16 * 1024 * 1024,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.communicate()


class Pouch:
    """A PouchDB that replicates as it is told."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def tell(self, do: str, **arguments: Json) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(30):
            line = await self._process.stdout.readline()
        assert line, "node has ended; what it said stands on the standard error"
        return json.loads(line)

    async def ids(self) -> set[str]:
        return {doc["_id"] for doc in await self.tell("docs")}

    async def has(self, count: int) -> list[Json]:
        """Its documents, once there are so many."""
        async with asyncio.timeout(30):
            while len(docs := await self.tell("docs")) < count:
                await asyncio.sleep(0.02)
        assert len(docs) == count
        return list(docs)


@contextlib.asynccontextmanager
async def pouch(packages: Path) -> AsyncIterator[Pouch]:
    async with node(packages, "replicator") as process:
        yield Pouch(process)


class Foreign:
    """An empty database somewhere, looked into with plain HTTP."""

    def __init__(self, url: str, session: aiohttp.ClientSession, site: Site | None = None) -> None:
        self.url, self.session, self.site = url, session, site

    async def ask(self, method: str, path: str, body: Json = None) -> Json:
        async with self.session.request(method, f"{self.url}{path}", json=body) as response:
            assert response.status < 300, await response.text()
            return await response.json(content_type=None)

    async def docs(self) -> dict[str, Json]:
        rows = (await self.ask("GET", "/_changes?include_docs=true"))["results"]
        return {row["id"]: row["doc"] for row in rows if not row.get("deleted")}

    async def write(self, *docs: Json) -> None:
        assert await self.ask("POST", "/_bulk_docs", {"new_edits": False, "docs": docs}) == []

    async def has(self, count: int) -> dict[str, Json]:
        async with asyncio.timeout(30):
            while len(docs := await self.docs()) < count:
                await asyncio.sleep(0.02)
        assert len(docs) == count
        return docs


@contextlib.asynccontextmanager
async def foreign(kind: str, config: pytest.Config, name: str = "peer") -> AsyncIterator[Foreign]:
    """A fresh database of a kind. `ours` is an agent-like server, which is called `cheops` whatever its name."""
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        if kind == "ours":
            site = Site()
            stack.callback(site.close)
            await stack.enter_async_context(serving(site))
            yield Foreign(site.at(), session, site)
            return
        base = await _base(kind, config, stack)
        there = Foreign(f"{base}/cheops-test-{name}-{os.getpid()}", session)
        await there.ask("PUT", "")
        try:
            yield there
        finally:
            await there.ask("DELETE", "")


async def _base(kind: str, config: pytest.Config, stack: contextlib.AsyncExitStack) -> str:
    if kind == "couchdb":
        return os.environ[COUCHDB].rstrip("/")
    process = await stack.enter_async_context(node(installed_packages(config), "server"))
    assert process.stdout is not None
    port = json.loads(await process.stdout.readline())
    return f"http://127.0.0.1:{port}"
