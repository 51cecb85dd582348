"""Drives the mesh: sends its probes over HTTP, answers those of others, and reports the events that follow."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

import aiohttp

from cheops.errors import CheopsError
from cheops.peers import heartbeat
from cheops.peers.client import PeerClient, read_response
from cheops.peers.mesh import Mesh, PeerEvent, Probe
from cheops.peers.settings import Now
from cheops.text import printable

PROBE_PATH = "peer/heartbeat"  # below the address of an agent
_LONGEST_SLEEP_S = 0.25  # `probe_now` does not wake the loop, and probes on their way expire at a tick
_log = logging.getLogger(__name__)


def now() -> Now:
    return Now(time.monotonic() * 1000, time.time() * 1000)


class ForgedSenderError(heartbeat.MeshError):
    """A site sends something in the name of another."""

    status = 403
    reason = "forged sender"


class Prober:
    """Drives one mesh; `report` gets the events for the engine."""

    def __init__(self, mesh: Mesh, client: PeerClient, report: Callable[[PeerEvent], None]) -> None:
        self.mesh = mesh
        self._client = client
        self._report = report
        self._probes: set[asyncio.Task[None]] = set()
        self._draw = random.SystemRandom().randrange

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        try:
            while True:
                probes, events = self.mesh.tick(now(), self._draw)
                self._report_all(events)
                for probe in probes:
                    task = asyncio.get_running_loop().create_task(self._probe(probe))
                    self._probes.add(task)
                    task.add_done_callback(self._probes.discard)
                await asyncio.sleep(min(self.mesh.wait_ms(now()) / 1000, _LONGEST_SLEEP_S))
        finally:
            for task in self._probes:
                task.cancel()

    def answer(self, body: bytes, peer: str | None = None) -> bytes:
        """The response to a probe; `peer` is the sender by its certificate, if it has one. Raises MeshError."""
        # Before the mesh sees it: gossip in a false name could make a live site seem restarted, or dead.
        probe = heartbeat.decode(body)
        if peer not in (None, probe.sender):
            raise ForgedSenderError(f"'{peer}' cannot send a heartbeat of '{printable(probe.sender)}'")
        reply, events = self.mesh.received_probe(probe, now())
        self._report_all(events)
        return heartbeat.encode(reply)

    async def _probe(self, probe: Probe) -> None:
        timeout = aiohttp.ClientTimeout(total=probe.timeout_ms / 1000)
        try:
            body = heartbeat.encode(probe.payload)
            async with self._client.request(
                probe.to_site, "POST", f"/{PROBE_PATH}", address=probe.to_url, data=body, timeout=timeout
            ) as response:
                body = await read_response(response, heartbeat.MAX_BYTES)
                if response.status != 200:
                    self._learn_refusal(response.status, body)
                    raise aiohttp.ClientError(f"responded with {response.status}")  # noqa: TRY301
            events = self.mesh.probe_answered(probe.id, self._read(probe, body), now())
        except (aiohttp.ClientError, TimeoutError, OSError, CheopsError) as error:
            _log.debug("the probe of %s failed: %s", probe.to_site, error)
            events = self.mesh.probe_failed(probe.id, now())
        self._report_all(events)

    def _read(self, probe: Probe, body: bytes) -> heartbeat.Heartbeat:
        """Decode a response. With security on its sender is certain, and must not use another name."""
        response = heartbeat.decode(body)
        if self._client.is_secure and response.sender != probe.to_site:
            raise ForgedSenderError(f"{probe.to_site} answered as '{printable(response.sender)}'")
        return response

    def _learn_refusal(self, status: int, body: bytes) -> None:
        """A site that was forgotten is refused, and learns of the decision by the refusal."""
        if status == 403 and (member := heartbeat.decode_refusal(body)):
            self.mesh.learn_own_membership(member, now())

    def _report_all(self, events: list[PeerEvent]) -> None:
        for event in events:
            self._report(event)
