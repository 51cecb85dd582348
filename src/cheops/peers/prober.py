"""Drives the mesh: sends its probes through channels, answers those of others, and reports the events that follow.

A site is up if it answers, whichever side opened the channel. An address at which another site answers gets the probe
by HTTP: the mesh must learn which site that is.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Protocol

from cheops.errors import CheopsError
from cheops.peers import heartbeat
from cheops.peers.channel_pool import ChannelPool
from cheops.peers.client import connection_problem
from cheops.peers.mesh import Mesh
from cheops.peers.probes import PeerEvent, Probe
from cheops.peers.requests import RequestKind
from cheops.peers.settings import Now
from cheops.peers.upgrade import UpgradeRefusedError
from cheops.text import printable

PROBE_PATH = "peer/heartbeat"  # below the address of an agent
_LONGEST_SLEEP_S = 0.25  # `probe_now` does not wake the loop, and probes on their way expire at a tick
_ANNOUNCE_S = 0.1  # between two rounds of an announcement
MOST_OPENED = 8  # channels for one announcement
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


def announced_to(missing: Iterable[str], has_channel: Callable[[str], bool], opened: set[str]) -> list[str]:
    """The sites that get an announcement now: all that have a channel, and a few others, for which one is opened. A
    decision must not open a thousand connections. `opened` are those others; it grows."""
    sites = [site for site in missing if has_channel(site) or site in opened]
    chosen = set(sites)
    for site in missing:
        if site not in chosen and len(opened) < MOST_OPENED:
            opened.add(site)
            sites.append(site)
    return sites


class Prober:
    """Drives one mesh; `report` gets the events for the engine, and `refusals` what the mesh did not take."""

    def __init__(
        self,
        mesh: Mesh,
        channels: ChannelPool,
        report: Callable[[PeerEvent], None],
        refusals: RecordRefusals,
        marks: Marks,
    ) -> None:
        self.mesh = mesh
        self._channels = channels
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
        """Send the decision about a site to the sites that are up, without waiting for their turn, until all have
        confirmed it or the time is over. In a large mesh most get it by gossip: see `announced_to`."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        opened: set[str] = set()
        while loop.time() < end_s:
            missing = [site for site in self.mesh.without_decision(about) if site in self.mesh.up]
            if not missing:
                return
            sites = announced_to(missing, lambda site: self._channels.get(site) is not None, opened)
            self._send(self.mesh.probes_to(sites, now()))
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
        try:
            body = heartbeat.encode(self._marks.add_to(probe.payload, probe.to_site))
            status, body = await self._ask(probe, body)
            if status != 200:
                self._learn_refusal(probe.to_site, status, body)
                raise ConnectionError(f"responded with {status}")
            answer = self._read(probe, body)
            events = self.mesh.probe_answered(probe.id, answer, now())
            self._marks.take(answer)
            self._report_refused()
        except (OSError, CheopsError) as error:
            _log.debug("the probe of %s failed: %s", printable(probe.to_site), printable(str(error)))
            events = self.mesh.probe_failed(probe.id, now(), connection_problem(error))
        self._report_all(events)

    async def _ask(self, probe: Probe, body: bytes) -> tuple[int, bytes]:
        """The status and the body of the response to a probe; raises OSError."""
        timeout_s = probe.timeout_ms / 1000
        try:
            return await self._channels.request(
                probe.to_site,
                RequestKind.HEARTBEAT,
                body,
                timeout_s=timeout_s,
                most_bytes=heartbeat.MAX_BYTES,
                address=probe.to_url,
            )
        except UpgradeRefusedError as error:
            if error.status != HTTPStatus.MISDIRECTED_REQUEST:
                return error.status, error.body
        return await self._channels.http.request(
            probe.to_site,
            "POST",
            f"/{PROBE_PATH}",
            body,
            timeout_s=timeout_s,
            most_bytes=heartbeat.MAX_BYTES,
            address=probe.to_url,
        )

    def _read(self, probe: Probe, body: bytes) -> heartbeat.Heartbeat:
        """Decode a response. With security on its sender is certain, and must not use another name."""
        response = heartbeat.decode(body)
        if self._channels.is_secure and response.sender != probe.to_site:
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
