"""From our feed into a foreign database: what it lacks, in bounded pieces."""

from collections.abc import Sequence

from cheops.sync.couch_document import Found
from cheops.sync.couch_errors import RefusedError, RemoteError
from cheops.sync.couch_remote import Written
from cheops.sync.couch_run import Run

# What a database says of a document that it will never take. Anything else may be otherwise the next time.
_DEFINITE = frozenset(
    {"forbidden", "unauthorized", "bad_request", "doc_validation", "too_large", "document_too_large"}
)


class Push(Run):
    """One run of sending."""

    async def run(self, *, live: bool) -> None:
        """Send what there is; with `live`, then what comes, until the local end is closed."""
        place = await self._checkpoints.start()
        since = self._local.places.number(str(place), await self._local.last_seq()) or 0
        while True:
            page = await self._local.page(since, self._settings.batch)
            await self._send([one for _, one in page.rows])
            since = page.reached
            if self._checkpoints.reached(self._local.places.written(since), len(page.rows)):
                await self._write_checkpoint()
            if page.is_last and not (live and await self._has_more(since)):
                break
        await self._write_checkpoint()

    async def _has_more(self, since: int) -> bool:
        """Wait for more; False when the local end is closed."""
        wait_s = max(0.0, self._checkpoints.due_s) if self._checkpoints.is_behind else None
        if not await self._local.pulse.beyond(since, wait_s) and not self._local.pulse.closed:
            await self._write_checkpoint()
            await self._local.pulse.beyond(since, None)
        return not self._local.pulse.closed

    async def _write_checkpoint(self) -> None:
        if self._checkpoints.is_behind:
            await self._remote.ensure_full_commit()
            await self._checkpoints.write(self.tally)

    async def _send(self, documents: Sequence[Found]) -> None:
        if not documents:
            return
        lacking = await self._remote.revs_diff({one.id: [one.rev] for one in documents})
        missing = [one for one in documents if one.id in lacking and one.rev in lacking[one.id].missing]
        for some in in_pieces(missing, self._settings.send_bytes):
            await self._write(some)
        self.tally.read += len(documents)

    async def _write(self, documents: Sequence[Found]) -> None:
        try:
            results = await self._remote.bulk_docs(documents)
        except RemoteError as error:
            if error.answered != 413:
                raise
            await self._write_less(documents)
            return
        refused = [result for result in results if result.error]
        for result in refused:
            self._refused(result)
        self.tally.written += len(documents) - len(refused)

    async def _write_less(self, documents: Sequence[Found]) -> None:
        """They were too large: in two halves, and if it is a single one, not at all."""
        if len(documents) > 1:
            half = len(documents) // 2
            await self._write(documents[:half])
            await self._write(documents[half:])
            return
        self._refused(
            Written(documents[0].id, "too_large", "the document is larger than what is taken there")
        )

    def _refused(self, result: Written) -> None:
        reason = f"{self._remote.name} does not take it: {result.error}: {result.reason}"
        if result.error not in _DEFINITE:
            raise RemoteError(f"document '{result.id}': {reason}")
        self._passed_over(RefusedError(result.id, "", reason))


def in_pieces(documents: Sequence[Found], most_bytes: int) -> list[list[Found]]:
    """Each no larger than that, unless it is a single document."""
    pieces: list[list[Found]] = []
    size = 0
    for one in documents:
        if not pieces or size + len(one.raw) > most_bytes:
            pieces.append([])
            size = 0
        pieces[-1].append(one)
        size += len(one.raw)
    return pieces
