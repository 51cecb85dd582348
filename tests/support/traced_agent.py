"""An agent that records which modules of Cheops it enters, in their order.

    python -m tests.support.traced_agent RECORD --config site.yaml

SIGUSR1 begins a new record, SIGUSR2 writes it to the file RECORD: a JSON list of paths below src/cheops, without
repetitions in a row.
"""

import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import cheops
from cheops.cli.main import main

_ROOT = f"{Path(cheops.__file__).parent}/"


class Recorder:
    def __init__(self, record: Path) -> None:
        self._record = record
        self._entered: list[str] | None = None  # None: nothing is recorded

    def install(self) -> None:
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._write)
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _begin(self, *_: object) -> None:
        self._entered = []

    def _write(self, *_: object) -> None:
        unfinished = self._record.with_suffix(".part")
        unfinished.write_text(json.dumps(self._entered))
        unfinished.rename(self._record)
        self._entered = None

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        entered, path = self._entered, frame.f_code.co_filename
        if entered is None or event != "call" or not path.startswith(_ROOT):
            return
        module = path.removeprefix(_ROOT)
        if not entered or entered[-1] != module:
            entered.append(module)


if __name__ == "__main__":
    Recorder(Path(sys.argv[1])).install()
    main(["agent", *sys.argv[2:]])
