"""The demo as its visitor has it: a process on a pseudo-terminal, that is read and typed to."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 90.0
_STYLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Visitor:
    """`seen` is everything that was on the terminal so far, styles and all. Temporary files go to `folder`."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self._parent, child = pty.openpty()
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cheops", "demo", *argv], stdin=child, stdout=child, stderr=child, env=env
        )
        os.close(child)
        self.seen = ""
        self._answered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._parent)

    @property
    def text(self) -> str:
        """What was seen, without styles."""
        return _STYLE.sub("", self.seen).replace("\r\n", "\n")

    def await_text(self, *wanted: str) -> str:
        """Read until one of these comes after what was answered last; gives which."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            new = self.seen[self._answered :]
            found = [(new.index(text), text) for text in wanted if text in new]
            if found:
                place, text = min(found)
                self._answered += place + len(text)
                return text
            assert time.monotonic() < deadline_s, f"waited for {wanted} in vain:\n{self.text[-3000:]}"
            assert self._read(), f"ended before {wanted}:\n{self.text[-3000:]}"

    def type(self, line: str) -> None:
        os.write(self._parent, f"{line}\n".encode())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Read to the end; gives the exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        if not select.select([self._parent], [], [], PATIENCE_S)[0]:
            return False
        try:
            chunk = os.read(self._parent, 65_536)
        except OSError:  # how Linux says that nobody has the other end open any more
            return False
        self.seen += chunk.decode()
        return bool(chunk)


def living(folder: Path) -> list[str]:
    """The processes that were started with something below this folder, or work there."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            where = str((entry / "cwd").readlink())
            is_zombie = (entry / "stat").read_text().rpartition(") ")[2][0] == "Z"
        except OSError:
            continue
        if not is_zombie and (f"{folder}/" in line or f"{where}/".startswith(f"{folder}/")):
            found.append(line)
    return found


def nothing_is_left(folder: Path) -> None:
    """Wait for it: whatever was killed goes within a moment."""
    deadline_s = time.monotonic() + PATIENCE_S
    while living(folder) or any(folder.iterdir()):
        assert time.monotonic() < deadline_s, (living(folder), list(folder.iterdir()))
        time.sleep(0.02)
