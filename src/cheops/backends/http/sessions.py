"""The open sessions of clients: what each has had so far, on disk, until it is complete.

A session is opened at one site, and its requests run there only. What they send is recorded, because other sites have
to repeat it once the session is complete. It survives a restart of the agent: each session has a folder, with the
bodies of its requests by their hash, and a journal with one line for each request. A line is written before the client
gets its response.

A session expires. Its handle is remembered for longer: a request that uses it must be refused, rather than change
the service at this site alone.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from cheops.backends.http.payload import Request
from cheops.errors import CheopsError, ClientError
from cheops.store.files import FileStore, make_private

MAX_SESSIONS = 1_000  # that are open
MAX_STEPS = 10_001  # S3 accepts 10,000 parts
FOLDER = "sessions"
_JOURNAL = "journal"
_REMEMBERED_S = 7 * 86_400.0  # after the end of its time
_MAX_REMEMBERED = 10_000  # with those that have expired
_log = logging.getLogger(__name__)


class Opening(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a journal."""

    service: str
    name: str  # of its rules
    handle: str
    sites: tuple[str, ...]
    site: str  # where it is open
    until_s: float  # when it expires, by the clock of the machine
    request: Request | None = None  # None: it is open at another site
    body: bytes = b""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A further line: a request that used the session. Without a hash it had no body."""

    request: Request
    hash: str = ""
    is_lost: bool = False  # nobody knows whether the service has done it


class Session:
    """One session. `steps` are in the order in which the service has done them."""

    def __init__(self, opening: Opening, files: FileStore) -> None:
        self.opening = opening
        self.files = files
        self.steps: list[Step] = []
        self.lock = asyncio.Lock()
        self._held: list[list[str]] = []  # the bodies of requests that the service has not answered yet
        self._replaced: list[str] = []

    @property
    def folder(self) -> Path:
        return self.files.folder

    @property
    def size(self) -> int:
        """Bytes of all bodies so far."""
        return len(self.opening.body) + sum(step.request.file_bytes or 0 for step in self.steps)

    def add(self, step: Step) -> None:
        """A PUT that is repeated replaces what it had put, and so settles a doubt about it."""
        if step.request.method == "PUT":
            self._replaced += [
                one.hash for one in self.steps if one.hash and _target(one.request) == _target(step.request)
            ]
            self.steps = [one for one in self.steps if _target(one.request) != _target(step.request)]
        self.steps.append(step)

    @contextmanager
    def holding(self, *hashes: str) -> Iterator[list[str]]:
        """Keep bodies while one request is under way; more can be added to the list. After it, those that no recorded
        request has are deleted: the service has refused them, or they were replaced."""
        held = list(hashes)
        self._held.append(held)
        try:
            yield held
        finally:
            self._held = [one for one in self._held if one is not held]
            needed = {step.hash for step in self.steps}.union(*self._held)
            for hash_ in {*held, *self._replaced} - needed:
                self.files.forget(hash_)
            self._replaced = [one for one in self._replaced if one in needed]

    def forget_all(self) -> None:
        """Delete all bodies."""
        self.steps = []
        with contextlib.suppress(OSError):
            for hash_ in self.files.hashes():
                self.files.forget(hash_)

    @property
    def lost(self) -> Request | None:
        """A request of which nobody knows whether the service has done it."""
        return next((step.request for step in self.steps if step.is_lost), None)

    def body(self, step: Step) -> bytes | Path:
        return self.files.path(step.hash) if step.hash else b""


def _target(request: Request) -> tuple[str, str, str]:
    return request.method, request.path, request.query


class OpenSessions:
    """All open sessions of a site. Not thread-safe; writes to the disk happen in threads."""

    def __init__(self, folder: Path, files: FileStore, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._files = files
        self._clock = clock
        self._sessions: dict[tuple[str, str], Session] = {}
        if folder.exists():
            for session in self._load():
                self._sessions[session.opening.service, session.opening.handle] = session
            self._sweep()
            with contextlib.suppress(RuntimeError):  # there is no event loop
                for session in self._sessions.values():
                    self._sweep_later(session.opening)

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, service: str, name: str, handle: str) -> Session | None:
        """Raises ClientError for one that has expired."""
        session = self._sessions.get((service, handle))
        if session is None or session.opening.name != name:
            return None
        if session.opening.until_s < self._clock():
            raise ClientError(
                f"this session ('{name}' of {service}) has expired, and nothing of it was replicated: begin again",
                status=404,
            )
        return session

    async def open(self, opening: Opening) -> Session:
        """Durable when this returns. Raises CheopsError if there are too many."""
        self._sweep()
        if sum(one.opening.until_s >= self._clock() for one in self._sessions.values()) >= MAX_SESSIONS:
            raise CheopsError(f"{MAX_SESSIONS:,} sessions are open at this site; try again later", status=503)
        session = await asyncio.to_thread(self._create, opening)
        self._sessions[opening.service, opening.handle] = session
        self._sweep_later(opening)
        return session

    async def add(self, session: Session, step: Step) -> None:
        """Durable when this returns."""
        async with session.lock:
            if len(session.steps) >= MAX_STEPS:
                raise ClientError(f"a session of more than {MAX_STEPS:,} requests is not replicated", status=413)
            await asyncio.to_thread(_append, session.folder, step)
            session.add(step)

    async def close(self, session: Session) -> None:
        """It is complete, or was aborted: the service knows its handle no longer."""
        self._sessions.pop((session.opening.service, session.opening.handle), None)
        await asyncio.to_thread(shutil.rmtree, session.folder, ignore_errors=True)

    def _sweep_later(self, opening: Opening) -> None:
        """When a session has expired, its bodies are deleted, also if no other is opened."""
        left_s = max(opening.until_s - self._clock(), 0.0)
        asyncio.get_running_loop().call_later(left_s + 1.0, self._sweep)

    def _sweep(self) -> None:
        """Delete what has expired: first the bodies, later the memory of the handle."""
        now_s, many = self._clock(), len(self._sessions) - _MAX_REMEMBERED
        for place, (key, session) in enumerate(list(self._sessions.items())):  # the oldest first
            is_expired = session.opening.until_s < now_s
            if session.opening.until_s + _REMEMBERED_S < now_s or (is_expired and place < many):
                shutil.rmtree(session.folder, ignore_errors=True)
                del self._sessions[key]
            elif is_expired:
                session.forget_all()

    # -- the disk ------------------------------------------------------------------------------------------

    def _create(self, opening: Opening) -> Session:
        make_private(self._folder)
        name = hashlib.sha256(f"{opening.service}\n{opening.handle}".encode()).hexdigest()[:32]
        folder = self._folder / name
        shutil.rmtree(folder, ignore_errors=True)  # the service gives this handle again
        session = Session(opening, self._files.within(folder))
        _append(folder, opening)
        return session

    def _load(self) -> Iterator[Session]:
        for folder in sorted(self._folder.iterdir()):
            try:
                first, *lines = (folder / _JOURNAL).read_bytes().split(b"\n")
                session = Session(msgspec.json.decode(first, type=Opening), self._files.within(folder))
                for line in lines[:-1]:  # what is after the last newline was not written completely
                    step = msgspec.json.decode(line, type=Step)
                    session.add(step)
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                _log.warning("the session in %s cannot be read, and is forgotten: %s", folder, error)
                shutil.rmtree(folder, ignore_errors=True)
                continue
            yield session


def _append(folder: Path, line: Opening | Step) -> None:
    try:
        descriptor = os.open(folder / _JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as journal:
            journal.write(msgspec.json.encode(line) + b"\n")
            journal.flush()
            os.fsync(journal.fileno())
    except OSError as error:
        raise CheopsError(f"cannot record a request of a session in {folder}: {error.strerror}") from error
