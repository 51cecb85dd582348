"""The mesh at work: its probes sent over HTTP, its answers, and the events that follow."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

import aiohttp

from cheops.errors import CheopsError
from cheops.sync import heartbeat
from cheops.sync.announcements import PeerEvent
from cheops.sync.mesh import Mesh, Probe
from cheops.sync.mesh_settings import Now

PATH = "mesh/probe"  # below the address of an agent
_LONGEST_REST_S = 0.25
_log = logging.getLogger(__name__)


def now() -> Now:
    return Now(time.monotonic() * 1000, time.time() * 1000)


class Heart:
    """Drives one mesh; `tell` gets what the engine is to hear."""

    def __init__(self, mesh: Mesh, session: aiohttp.ClientSession, tell: Callable[[PeerEvent], None]) -> None:
        self.mesh = mesh
        self._session = session
        self._tell = tell
        self._probes: set[asyncio.Task[None]] = set()
        self._draw = random.SystemRandom().randrange

    async def run(self) -> None:
        """Beat until cancelled."""
        try:
            while True:
                probes, events = self.mesh.tick(now(), self._draw)
                self._tell_all(events)
                for probe in probes:
                    task = asyncio.get_running_loop().create_task(self._probe(probe))
                    self._probes.add(task)
                    task.add_done_callback(self._probes.discard)
                await asyncio.sleep(min(self.mesh.wait_ms(now()) / 1000, _LONGEST_REST_S))
        finally:
            for task in self._probes:
                task.cancel()

    def answer(self, body: bytes) -> bytes:
        """Somebody's probe; gives what to answer. Raises MeshError."""
        reply, events = self.mesh.received_probe(heartbeat.decode(body), now())
        self._tell_all(events)
        return heartbeat.encode(reply)

    async def _probe(self, probe: Probe) -> None:
        timeout = aiohttp.ClientTimeout(total=probe.timeout_ms / 1000)
        try:
            async with self._session.post(
                f"{probe.to_url}/{PATH}", data=heartbeat.encode(probe.payload), timeout=timeout
            ) as answer:
                body = await answer.content.read(heartbeat.MAX_BYTES + 1)
                if answer.status != 200:
                    raise aiohttp.ClientError(f"answered {answer.status}")  # noqa: TRY301
            events = self.mesh.probe_answered(probe.id, heartbeat.decode(body), now())
        except (aiohttp.ClientError, TimeoutError, OSError, CheopsError) as error:
            _log.debug("the probe of %s failed: %s", probe.to_site, error)
            events = self.mesh.probe_failed(probe.id, now())
        self._tell_all(events)

    def _tell_all(self, events: list[PeerEvent]) -> None:
        for event in events:
            self._tell(event)
