"""What clients do in a history with HTTP services: several at a time, each at one site, one request after the other.

Clients tell each other the ids that they got. Some things are used in one way only, so that nothing excuses a
difference at the end; others in every way at once.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cheops.sim.http_world import HttpWorld, Sent

_CLIENTS = 5
_BUCKETS, _KEYS, _ACCOUNTS, _TAGS = ("/b0", "/b1"), ("x", "y", "z"), ("a", "b"), ("red", "blue")
_FOLDERS, _REPOSITORIES = ("/d0", "/d1"), ("/r0", "/r1")
_TEXTS, _TAGGED, _MIXED = "texts", "tagged", "mixed"  # how a note, or an object, is used
_STYLES = (_TEXTS, _TAGGED, _TAGGED, _MIXED)
Request = tuple[str, str, str, dict[str, Any], tuple[str, ...]]  # service, method, path, body, sites of the scope


@dataclass
class _Thing:
    path: str
    sites: tuple[str, ...]
    style: str
    comments: list[str] = field(default_factory=list)


class Clients:
    """All clients of a history."""

    def __init__(self, world: HttpWorld) -> None:
        self._world = world
        self._random = world.random
        self._notes: list[_Thing] = []
        self._objects: dict[str, _Thing] = {}
        self._sites = {name: self._some_sites() for name in (*_BUCKETS, *_FOLDERS, *_REPOSITORIES, *_KEYS, "/")}
        # One client uses the ledger, or all do: then its transactions cannot have one order during a cut.
        self._cashier = self._random.choice((*world.nodes, ""))
        self._numbers = 0

    def _some_sites(self) -> tuple[str, ...]:
        names = list(self._world.nodes)
        return tuple(sorted(self._random.sample(names, self._random.randint(min(2, len(names)), len(names)))))

    def start(self) -> None:
        profile, names = self._world.profile, list(self._world.nodes)
        for number in range(_CLIENTS):
            share = profile.operations // _CLIENTS + (number < profile.operations % _CLIENTS)
            pause_ms = profile.duration_ms // max(1, share)
            self._world.loop.start(self._client(names[number % len(names)], share, pause_ms))

    async def _client(self, site: str, share: int, pause_ms: int) -> None:
        has_credentials = self._random.random() < 0.5  # they are gone if the agent stops before the service has decided
        for _ in range(share):
            await asyncio.sleep(self._random.randint(0, 2 * pause_ms) / 1000)
            service, method, path, content, sites = self._invent(site)
            self._numbers += 1
            sent = Sent(self._numbers, site, service, method, path, content, sites, has_credentials)
            await self._world.request(sent, msgspec.json.encode(content) if content else b"")
            self._learn(sent)

    def _learn(self, sent: Sent) -> None:
        if sent.service == "store" and sent.path.count("/") == 2 and sent.is_acknowledged:
            self._objects.setdefault(sent.path, _Thing(sent.path, sent.sites, self._style(sent.path)))
        if sent.method != "POST" or sent.service != "notes" or not sent.is_acknowledged or not sent.resource:
            return
        if sent.path == "/notes":
            self._notes.append(_Thing(f"/notes/{sent.resource}", sent.sites, self._random.choice(_STYLES)))
        else:
            note = next(one for one in self._notes if sent.path == f"{one.path}/comments")
            note.comments.append(f"{sent.path}/{sent.resource}")

    @staticmethod
    def _style(path: str) -> str:
        return {"0": _TEXTS, "1": _TAGGED}.get(path[-1], _MIXED)

    # -- inventing -----------------------------------------------------------------------------------------

    def _invent(self, site: str) -> Request:
        kinds: tuple[Callable[[str], Request], ...] = (
            *(self._note, self._note, self._object, self._object, self._key, self._file, self._image),
        )
        luck = self._random.random()
        if luck < 0.12 and self._cashier in ("", site):
            return self._transaction()
        return self._random.choice(kinds)(site)

    @property
    def _value(self) -> str:
        return f"v{self._numbers + 1}"

    def _deletes(self) -> bool:
        return self._random.random() < self._world.profile.deletes

    def _note(self, site: str) -> Request:
        known = [note for note in self._notes if site in note.sites or self._random.random() < 0.1]
        if not known or self._random.random() < 0.25:
            return self._new_note()
        note = self._random.choice(known)
        scope = self._random.choice(((), note.sites))
        if self._deletes():
            return "notes", "DELETE", note.path, {}, scope
        if self._random.random() < 0.2:
            return self._comment(note)
        style = note.style if note.style != _MIXED else self._random.choice((_TEXTS, _TAGGED))
        return self._tag(note, scope) if style == _TAGGED else self._text(note, scope)

    def _tag(self, note: _Thing, scope: tuple[str, ...]) -> Request:
        path = f"{note.path}/tags/{self._random.choice(_TAGS)}"
        if self._random.random() < 0.15:
            return "notes", "DELETE", path, {}, scope
        return "notes", "PUT", path, {"value": self._value}, scope

    def _text(self, note: _Thing, scope: tuple[str, ...]) -> Request:
        if self._random.random() < 0.5:
            return "notes", "PUT", note.path, {"text": self._value}, scope
        return "notes", "PATCH", note.path, {self._random.choice(("text", "color")): self._value}, scope

    def _new_note(self) -> Request:
        content, sites = {"text": self._value}, self._some_sites()
        if self._notes and self._random.random() < 0.4:
            other = self._random.choice(self._notes)
            content["ref"], sites = other.path.rpartition("/")[2], other.sites
        return "notes", "POST", "/notes", content, sites

    def _comment(self, note: _Thing) -> Request:
        if note.comments and self._random.random() < 0.4:
            return "notes", "PUT", self._random.choice(note.comments), {"text": self._value}, ()
        return "notes", "POST", f"{note.path}/comments", {"text": self._value}, note.sites

    def _object(self, _site: str) -> Request:
        bucket = self._random.choice(_BUCKETS)
        sites = self._sites[bucket]
        luck = self._random.random()
        if luck < 0.15:
            return "store", "PUT", bucket, {"made": self._value}, sites
        if luck < 0.15 + self._world.profile.deletes / 2:
            return "store", "DELETE", bucket, {}, sites
        path = f"{bucket}/k{self._random.randint(0, 3)}"
        known, style = path in self._objects, self._style(path)
        if self._deletes() and style == _MIXED:
            return "store", "DELETE", path, {}, sites
        if not known or style == _TEXTS or (style == _MIXED and self._random.random() < 0.5):
            return "store", "PUT", path, {"value": self._value}, sites
        if self._random.random() < 0.15:
            return "store", "DELETE", f"{path}?tagging", {}, sites
        return "store", "PUT", f"{path}?tagging", {"value": self._value}, sites

    def _file(self, _site: str) -> Request:
        folder = self._random.choice(_FOLDERS)
        sites, luck = self._sites[folder], self._random.random()
        if luck < 0.3:
            return "files", "MKCOL", folder, {}, sites
        if luck < 0.3 + 2 * self._world.profile.deletes:
            return "files", "DELETE", folder, {}, sites
        path = f"{folder}/f{self._random.randint(0, 2)}"
        if self._deletes():
            return "files", "DELETE", path, {}, sites
        return "files", "PUT", path, {"value": self._value}, sites

    def _image(self, _site: str) -> Request:
        repository = self._random.choice(_REPOSITORIES)
        path = f"{repository}/tags/{self._random.choice(_TAGS)}"
        if self._deletes():
            return "images", "DELETE", path, {}, self._sites[repository]
        return "images", "PUT", path, {"value": self._value}, self._sites[repository]

    def _key(self, _site: str) -> Request:
        key = self._random.choice(_KEYS)
        luck = self._random.random()
        if luck < 0.1:
            return "kv", "POST", "/kv/range", {"key": key}, self._sites[key]
        if luck < 0.1 + self._world.profile.deletes:
            return "kv", "POST", "/kv/delete", {"key": key}, self._sites[key]
        return "kv", "POST", "/kv/put", {"key": key, "value": self._value}, self._sites[key]

    def _transaction(self) -> Request:
        account = self._random.choice(_ACCOUNTS)
        if self._random.random() < 0.3:
            return (
                "ledger",
                "POST",
                "/set",
                {"account": account, "value": self._random.randint(0, 20)},
                self._sites["/"],
            )
        return "ledger", "POST", "/txn", {"account": account, "add": self._random.randint(-5, 9)}, self._sites["/"]
