"""Drives the mesh: sends its probes over HTTP, answers those of others, and reports the events that follow."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import aiohttp

from cheops.errors import CheopsError
from cheops.peers import heartbeat
from cheops.peers.client import PeerClient, connection_problem, read_response
from cheops.peers.mesh import Mesh
from cheops.peers.probes import PeerEvent, Probe
from cheops.peers.settings import Now
from cheops.text import printable

PROBE_PATH = "peer/heartbeat"  # below the address of an agent
_LONGEST_SLEEP_S = 0.25  # `probe_now` does not wake the loop, and probes on their way expire at a tick
_ANNOUNCE_S = 0.1  # between two rounds of an announcement
_MOST_AT_ONCE = 64  # sites in one round
_log = logging.getLogger(__name__)


def now() -> Now:
    return Now(time.monotonic() * 1000, time.time() * 1000)


class ForgedSenderError(heartbeat.MeshError):
    """A site sends something in the name of another."""

    status = 403
    reason = "forged sender"


class RecordRefusals(Protocol):
    """Records what this site refuses to other sites; see security/refusals.py."""

    def document(self, reason: str, site: str, what: str = "", resource: str = "", detail: str = "") -> None: ...


class Marks(Protocol):
    """What heartbeats say of stores; see watermark.py."""

    def add_to(self, payload: heartbeat.Heartbeat, receiver: str) -> heartbeat.Heartbeat: ...

    def take(self, payload: heartbeat.Heartbeat) -> None: ...


class Prober:
    """Drives one mesh; `report` gets the events for the engine, and `refusals` what the mesh did not take."""

    def __init__(
        self,
        mesh: Mesh,
        client: PeerClient,
        report: Callable[[PeerEvent], None],
        refusals: RecordRefusals,
        marks: Marks,
    ) -> None:
        self.mesh = mesh
        self._client = client
        self._report = report
        self._refusals = refusals
        self._marks = marks
        self._probes: set[asyncio.Task[None]] = set()
        self._draw = random.SystemRandom().randrange

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        try:
            while True:
                probes, events = self.mesh.tick(now(), self._draw)
                self._report_all(events)
                self._send(probes)
                await asyncio.sleep(min(self.mesh.wait_ms(now()) / 1000, _LONGEST_SLEEP_S))
        finally:
            for task in self._probes:
                task.cancel()

    async def announce(self, about: str, timeout_s: float) -> None:
        """Send the decision about a site to all sites that are up, without waiting for their turn, until all have
        confirmed it or the time is over. In a large mesh most get it by gossip meanwhile."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while loop.time() < end_s:
            missing = [site for site in self.mesh.without_decision(about) if site in self.mesh.up]
            if not missing:
                return
            self._send(self.mesh.probes_to(missing[:_MOST_AT_ONCE], now()))
            await asyncio.sleep(_ANNOUNCE_S)

    def answer(self, body: bytes, peer: str | None = None) -> bytes:
        """The response to a probe; `peer` is the sender by its certificate, if it has one. Raises MeshError."""
        # Before the mesh sees it: gossip in a false name could make a live site seem restarted, or dead.
        probe = heartbeat.decode(body)
        if peer not in (None, probe.sender):
            raise ForgedSenderError(f"'{peer}' cannot send a heartbeat of '{printable(probe.sender)}'")
        reply, events = self.mesh.received_probe(probe, now())
        self._report_all(events)
        self._report_refused()
        self._marks.take(probe)
        return heartbeat.encode(self._marks.add_to(reply, probe.sender))

    async def _probe(self, probe: Probe) -> None:
        timeout = aiohttp.ClientTimeout(total=probe.timeout_ms / 1000)
        try:
            body = heartbeat.encode(self._marks.add_to(probe.payload, probe.to_site))
            async with self._client.request(
                probe.to_site, "POST", f"/{PROBE_PATH}", address=probe.to_url, data=body, timeout=timeout
            ) as response:
                body = await read_response(response, heartbeat.MAX_BYTES)
                if response.status != 200:
                    self._learn_refusal(probe.to_site, response.status, body)
                    raise aiohttp.ClientError(f"responded with {response.status}")  # noqa: TRY301
            answer = self._read(probe, body)
            events = self.mesh.probe_answered(probe.id, answer, now())
            self._marks.take(answer)
            self._report_refused()
        except (aiohttp.ClientError, TimeoutError, OSError, CheopsError) as error:
            _log.debug("the probe of %s failed: %s", printable(probe.to_site), printable(str(error)))
            events = self.mesh.probe_failed(probe.id, now(), connection_problem(error))
        self._report_all(events)

    def _read(self, probe: Probe, body: bytes) -> heartbeat.Heartbeat:
        """Decode a response. With security on its sender is certain, and must not use another name."""
        response = heartbeat.decode(body)
        if self._client.is_secure and response.sender != probe.to_site:
            raise ForgedSenderError(f"{probe.to_site} answered as '{printable(response.sender)}'")
        return response

    def _send(self, probes: Iterable[Probe]) -> None:
        for probe in probes:
            task = asyncio.get_running_loop().create_task(self._probe(probe))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    def _learn_refusal(self, site: str, status: int, body: bytes) -> None:
        """A site that was forgotten is refused, and learns of the decision by the refusal."""
        if status == 403 and (member := heartbeat.decode_refusal(body)):
            self.mesh.learn_own_membership(member, site, now())
            self._report_refused()

    def _report_refused(self) -> None:
        for sender, reason, detail in self.mesh.refused_records():
            self._refusals.document(reason, sender, detail=detail)

    def _report_all(self, events: list[PeerEvent]) -> None:
        for event in events:
            self._report(event)
