"""From a foreign database into ours: what we lack, in bounded pieces, checked document by document."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from cheops.sync.couch_document import FIRST, shared_key
from cheops.sync.couch_errors import RefusedError, RemoteError, TooLargeAnswerError
from cheops.sync.couch_remote import Row
from cheops.sync.couch_run import Run


class Pull(Run):
    """One run of fetching."""

    async def run(self, *, live: bool) -> None:
        """Fetch what there is; with `live`, then what comes, until the local end is closed."""
        since, wait_s = await self._checkpoints.start(), None
        while not self._local.pulse.closed:
            changes = await self._remote.changes(since, self._settings.batch, wait_s)
            if changes.results and changes.last_seq == since:
                raise RemoteError(f"{self._remote.name}: _changes gives the same place for ever: {since}")
            await self._fetch(changes.results)
            since = changes.last_seq
            is_due = self._checkpoints.reached(since, len(changes.results))
            if is_due or (not changes.results and wait_s is not None):
                await self._checkpoints.write(self.tally)
            if not changes.results:
                if not live:
                    break
                wait_s = await self._patience(wait_s)
        await self._checkpoints.write(self.tally)

    async def _patience(self, before_s: float | None) -> float:
        """How long to wait for changes: for ever (0), or until the place should be noted."""
        if before_s == 0:  # that was for ever, and yet it is over: the other end stops, or cannot wait
            await asyncio.sleep(self._settings.first_delay_s)
        return max(0.001, self._checkpoints.due_s) if self._checkpoints.is_behind else 0

    async def _fetch(self, rows: Iterable[Row]) -> None:
        revs = self._ours(rows)
        here = await self._local.revisions(revs)
        lacking = {id_: rev for id_, rev in revs.items() if id_ not in here}
        for id_ in (id_ for id_, rev in here.items() if rev != revs[id_]):
            self._passed_over(
                RefusedError(id_, revs[id_], f"{self._remote.name} has another content than we")
            )
        if lacking:
            await self._take(lacking)

    def _ours(self, rows: Iterable[Row]) -> dict[str, str]:
        """The ids that can be ours, with their revision. One that was deleted or edited is foreign, too."""
        revs = {}
        for row in rows:
            self.tally.read += 1
            firsts = [change.rev for change in row.changes if change.rev.startswith(FIRST)]
            if row.deleted or not firsts or shared_key(row.id) is None:
                self.tally.foreign += 1
            else:
                revs[row.id] = firsts[0]
        return revs

    async def _take(self, lacking: Mapping[str, str]) -> None:
        try:
            documents = await self._remote.documents(lacking)
        except TooLargeAnswerError as error:
            await self._take_less(lacking, error)
            return
        got = _each_once(documents, lacking)
        taken = await self._local.take(got)
        for refused in taken.refused:
            self._passed_over(refused)
        self.tally.written += taken.new
        self.tally.gone += len(lacking) - len(got)

    async def _take_less(self, lacking: Mapping[str, str], error: TooLargeAnswerError) -> None:
        """The answer was too large: in two halves, and if it is a single one, not at all."""
        pairs = list(lacking.items())
        half = len(pairs) // 2
        if half:
            await self._take(dict(pairs[:half]))
            await self._take(dict(pairs[half:]))
            return
        self._passed_over(RefusedError(*pairs[0], str(error)))


def _each_once(documents: Iterable[Any], wanted: Mapping[str, str]) -> list[Any]:
    """And nothing that nobody asked for."""
    by_id = {one["_id"]: one for one in documents if isinstance(one, dict) and one.get("_id") in wanted}
    return list(by_id.values())
