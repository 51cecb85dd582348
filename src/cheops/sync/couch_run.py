"""What a run in either direction has: both ends, how far it got, and what it did."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from cheops.sync.couch_checkpoint import Checkpoints, Tally
from cheops.sync.couch_database import Database
from cheops.sync.couch_errors import RefusedError
from cheops.sync.couch_limits import ReplicatorSettings
from cheops.sync.couch_remote import Remote

Report = Callable[[Exception], None]


class Run(ABC):
    def __init__(
        self,
        local: Database,
        remote: Remote,
        checkpoints: Checkpoints,
        settings: ReplicatorSettings,
        report: Report,
    ) -> None:
        self.tally = Tally()
        self._local, self._remote, self._checkpoints = local, remote, checkpoints
        self._settings, self._report = settings, report

    @abstractmethod
    async def run(self, *, live: bool) -> None:
        """Copy what there is; with `live`, then what comes, until the local end is closed."""

    def _passed_over(self, error: RefusedError) -> None:
        """One document that is not taken: counted and told, and the rest goes on."""
        self.tally.refused += 1
        self._report(error)
