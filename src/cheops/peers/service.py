"""Answers the requests of other agents, whatever they came by: a channel (channel_requests.py), or HTTP (endpoint.py).

    heartbeat       a heartbeat, answered by one (prober.py)
    messages        messages of the other site's engine (links.py, intake.py)
    files           a file of an operation (files.py)
    identity        the certificates of a site (site_keys.py)
    renewal         a new certificate for the sender (renewal.py)
    show            the state of a resource in the local application
    verified        that the applications of a resource differ, or are equal again
    replicants      the sites of a replicated resource
    documents       documents of a resource, for a site whose disk has damaged its own

A sender is known by the certificate of its connection and by nothing else: tokens, cookies and roles are for clients.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

import msgspec

from cheops.errors import CheopsError, ClientError, Fault
from cheops.peers import links
from cheops.peers.channel_pool import ChannelPool
from cheops.peers.enrollment import Enrollment
from cheops.peers.intake import DocumentIntake, Engine
from cheops.peers.mesh import Mesh
from cheops.peers.origin_tables import OriginTables
from cheops.peers.prober import ForgedSenderError, Prober
from cheops.peers.requests import PREFIX, Handler, Peer, PeerRefusedError, PeerResponse, RequestKind
from cheops.peers.site_keys import SiteKeys
from cheops.security.refusals import REFUSED_STATUSES, RateLimiter, RefusalLog, reason_of
from cheops.store.files import FileReferences, FileStore
from cheops.text import printable

_MOST_RECORDED = 200  # invalid documents of one request in the audit log


class LocalSite(Protocol):
    """The parts of a site that requests of peers reach. `Node` has them."""

    mesh: Mesh
    prober: Prober
    intake: DocumentIntake
    enrollment: Enrollment
    files: FileStore
    file_references: FileReferences
    refusal_log: RefusalLog
    site_limiter: RateLimiter
    channels: ChannelPool
    links: links.PeerLinks
    name: str

    @property
    def engine(self) -> Engine: ...

    @property
    def site_keys(self) -> SiteKeys | None: ...


def json_body(content: object, status: int = 200) -> PeerResponse:
    return PeerResponse(msgspec.json.encode(content), status)


class PeerService:
    """Answers the requests of other agents. `others` adds the kinds that need more than this package has."""

    def __init__(self, site: LocalSite, others: Mapping[RequestKind, Handler]) -> None:
        self._site = site
        self._handlers: dict[RequestKind, Handler] = {
            RequestKind.HEARTBEAT: self._heartbeat,
            RequestKind.MESSAGES: self._messages,
            RequestKind.FILE: self._file,
            RequestKind.IDENTITY: self._identity,
            RequestKind.RENEWAL: self._renewal,
            **others,
        }

    async def handle(self, peer: Peer, kind: RequestKind, body: bytes) -> PeerResponse:
        """Raises CheopsError for what is refused."""
        try:
            return await self._handlers[kind](peer, body)
        except UnicodeDecodeError:
            raise ClientError("the name in a request is not UTF-8 text") from None

    def record_refusal(self, error: CheopsError, site: str, address: str, first: str) -> None:
        """Record that a request is refused, if that is what the error says. `first` is its kind, as it was sent."""
        if error.status in REFUSED_STATUSES:
            # Only known names: the audit log keeps refusals apart by this text, and a sender must not choose it.
            what = f"{PREFIX}{first if first in set(RequestKind) else '…'}"
            self._site.refusal_log.request(reason_of(error), site, address, str(error), error.status, what)

    def take_turn(self, site: str) -> None:
        """Count a request of a site; raises PeerRefusedError if it sends too many."""
        if wait_s := self._site.site_limiter.take(site):
            raise PeerRefusedError("too many requests; wait before the next", "rate", 429, wait_s)

    def turn_s(self, site: str) -> float:
        """As `take_turn`, in seconds to wait; 0 if it is within the limit."""
        return self._site.site_limiter.take(site)

    async def _heartbeat(self, peer: Peer, body: bytes) -> PeerResponse:
        if peer.identity is not None and self._site.site_keys is not None:
            self._site.site_keys.note_shown(peer.identity)
        return PeerResponse(self._site.prober.answer(body, peer.site))

    async def _messages(self, peer: Peer, body: bytes) -> PeerResponse:
        def tables_of(claimed: str) -> OriginTables:
            return self._site.links.tables(claimed if peer.site is None else peer.site)

        is_large = links.is_larger(body, links.LARGE_BYTES)
        unpacked = await asyncio.to_thread(links.unpack, body, tables_of) if is_large else links.unpack(body, tables_of)
        sender, messages, refused = unpacked.site, unpacked.messages, unpacked.refused
        if peer.site not in (None, sender):
            raise ForgedSenderError(f"'{peer.site}' cannot send messages of '{printable(sender)}'")
        if unpacked.is_unknown:
            self._site.links.report_unknown(sender)
        if peer.identity is not None and self._site.site_keys is not None:
            # Its signatures are about to be checked, so its certificate must be known first.
            await self._site.site_keys.add(peer.identity)
        for one in refused[:_MOST_RECORDED]:
            self._site.refusal_log.document(links.INVALID, sender, one.id or "a document", detail=one.reason)
        await self._site.intake.take(sender, messages)
        return PeerResponse(status=201)

    async def _file(self, peer: Peer, body: bytes) -> PeerResponse:
        hash_ = body.decode()
        path = self._site.files.path(hash_)
        if not path.exists():
            raise ClientError(f"the file {hash_[:12]}… is not here", status=404)
        if peer.site is not None:
            await self._check_file(peer.site, hash_)
        return PeerResponse(file=path)

    async def _check_file(self, peer: str, hash_: str) -> None:
        """A site gets the files of resources that it is, or was, involved in."""
        if not self._site.file_references.is_complete:
            raise CheopsError(
                "this site is still reading which files belong to which resources; try again",
                status=503,
                definite=False,
                fault=Fault.PEER,
            )
        for resource in self._site.file_references.users(hash_):
            history = (await self._site.engine.replica(resource)).history
            if peer in history.site_list or peer in history.ever_listed:
                return
        raise PeerRefusedError(f"no resource of {peer} has the file {hash_[:12]}…", "site not involved")

    async def _identity(self, _peer: Peer, body: bytes) -> PeerResponse:
        site_keys = self._site.site_keys
        note = await site_keys.note_of(body.decode()) if site_keys else None
        return json_body(note or {"certificates": []}, 200 if note else 404)

    async def _renewal(self, peer: Peer, _body: bytes) -> PeerResponse:
        if peer.identity is None:
            raise ClientError("a certificate is renewed only for the site that shows it")
        site_keys = self._site.site_keys
        newest_ms = await site_keys.newest_ms(peer.identity.site) if site_keys else 0
        return json_body(self._site.enrollment.renew(peer.identity, newest_ms))
