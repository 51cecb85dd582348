"""Asking a service: over a warm connection where there is one, and once more where that one was stale."""

from dataclasses import dataclass

from cheops.config.gateway import GatewayConfig
from cheops.gateway.call import Answer, Call, Informed, Patience
from cheops.gateway.errors import UpstreamError
from cheops.gateway.headers import Passage
from cheops.gateway.pool import Place, Pool
from cheops.gateway.seam import Head, first
from cheops.gateway.upload import Upload
from cheops.gateway.wire import Wire
from cheops.sync.asking import Credentials

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"})
_IDEMPOTENT = _SAFE | {"PUT", "DELETE"}


def may_be_repeated(head: Head) -> bool:
    """Whether to run it twice is as good as once."""
    return head.method in _IDEMPOTENT or first(head, "Idempotency-Key") is not None


def only_reads(head: Head) -> bool:
    return head.method in _SAFE


class Asked:
    """A call whose answer has begun."""

    def __init__(self, call: Call, answer: Answer, place: Place, pool: Pool) -> None:
        self.call = call
        self.answer = answer
        self._place = place
        self._pool = pool

    async def finish(self) -> None:
        """In any case, whether the answer was read to its end or not."""
        if await self.call.finish():
            self._pool.give_back(self._place, self.call.wire)


class Watched:
    """The connection to a service that works for a client just now: a client that leaves ends it."""

    def __init__(self) -> None:
        self._wire: Wire | None = None
        self.is_gone = False

    def works(self, wire: Wire | None) -> None:
        self._wire = wire
        if wire is not None and self.is_gone:
            wire.abort()

    def gone(self) -> None:
        self.is_gone = True
        if self._wire is not None:
            self._wire.abort()


@dataclass(frozen=True, slots=True)
class Errand:
    """A request to be sent, and who looks on. Without a passage it is our own, not passed on for somebody."""

    head: Head
    upload: Upload
    informed: Informed
    watched: Watched
    passage: Passage | None = None


class Asking:
    """Sends requests to places."""

    def __init__(self, settings: GatewayConfig, credentials: Credentials | None = None) -> None:
        self._settings = settings
        self.pool = Pool(settings, credentials)

    async def ask(self, place: Place, errand: Errand, patience: Patience) -> Asked:
        """Send a request, its head as it is, and wait for its answer to begin. Raises UpstreamError."""
        head, upload, watched = errand.head, errand.upload, errand.watched
        repeatable = may_be_repeated(head)
        wire = self.pool.warm(place, sure=not repeatable)
        if wire is not None:
            call = Call(wire, head, upload, self._settings, patience)
            try:
                return await self._begun(call, place, errand)
            except UpstreamError:
                stale = wire.has_ended and not call.heard and not watched.is_gone
                if not (stale and repeatable and upload.can_restart):
                    raise
        wire = await self.pool.fresh(place)
        call = Call(wire, head, upload, self._settings, patience)
        return await self._begun(call, place, errand)

    async def _begun(self, call: Call, place: Place, errand: Errand) -> Asked:
        errand.watched.works(call.wire)
        try:
            answer = await call.begin(errand.informed)
        except BaseException:
            await call.finish()
            errand.watched.works(None)
            raise
        return Asked(call, answer, place, self.pool)
