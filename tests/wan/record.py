"""What is written down of a bed, so that anybody can find it, steer it, and clear away what a dead one left.

The record is there before the first namespace and goes after the last, so nothing of a bed is ever without one.
A bed is alive while its owner is: the process that made it, known by its id and start time (ids come again).
Clearing away may be done by several at once and over again: by the switch, by the owner, and by hand.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

RECORDS = Path("/run/cheops-wan")
NAMESPACES = Path("/run/netns")  # where iproute2 keeps them
_KILL_TIMEOUT_S = 10.0


class WanError(Exception):
    """The bed cannot do what was asked; the text says why, and what to do."""


@dataclass(frozen=True)
class Record:
    """A bed: its short id, whose it is, its first delay, and the addresses of its hosts."""

    bed: str
    owner_pid: int
    owner_start: int
    by_hand: bool
    delay_ms: float
    addresses: dict[str, str]

    @property
    def path(self) -> Path:
        return RECORDS / f"{self.bed}.json"

    @property
    def control_path(self) -> Path:
        return RECORDS / f"{self.bed}.sock"

    @property
    def nat_address(self) -> str:
        """The public address of the hosts that are behind NAT."""
        return next(iter(self.addresses.values())).rpartition("." if self.is_ipv4 else ":")[0] + (
            ".200" if self.is_ipv4 else ":c8"
        )

    @property
    def is_ipv4(self) -> bool:
        return all(":" not in address for address in self.addresses.values())

    def namespace(self, name: str) -> str:
        return f"ch{self.bed}-{name}"

    @property
    def namespaces(self) -> list[Path]:
        return [NAMESPACES / self.namespace(name) for name in self.addresses]

    def is_alive(self) -> bool:
        return started(self.owner_pid) == self.owner_start


def new_record(addresses: dict[str, str], *, delay_ms: float, by_hand: bool) -> Record:
    """Write down a bed of this process, under an id nobody else has."""
    RECORDS.mkdir(mode=0o700, exist_ok=True)
    own = os.getpid()
    while True:
        record = Record(secrets.token_hex(3), own, started(own) or 0, by_hand, delay_ms, addresses)
        draft = RECORDS / f"{record.bed}.{own}.draft"
        draft.write_text(json.dumps(asdict(record)), encoding="utf-8")
        try:
            record.path.hardlink_to(draft)  # whole or not at all, and never over another's
        except FileExistsError:
            continue
        finally:
            draft.unlink()
        return record


def read_record(bed: str) -> Record:
    try:
        return Record(**json.loads((RECORDS / f"{bed}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise WanError(f"there is no bed '{bed}'; `python -m tests.wan list` shows those there are") from None


def all_records() -> list[Record]:
    """Every bed written down, alive or dead; one that is just being removed may be missing."""
    found = []
    for path in sorted(RECORDS.glob("*.json")):
        try:
            found.append(read_record(path.stem))
        except WanError:
            continue
    return found


def started(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if there is none (a zombie is none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def ip_command() -> str | None:
    """iproute2's `ip`, which Debian keeps where not every PATH leads."""
    return shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def ip_batch(lines: list[str]) -> str:
    """Run many `ip` commands in one process, all of them whatever happens; gives what it complained about."""
    command = [ip_command() or "ip", "-force", "-batch", "-"]
    return subprocess.run(command, input="\n".join(lines), text=True, capture_output=True, check=False).stderr.strip()


def remove(record: Record) -> None:
    """Kill whatever lives in the bed, then take away its namespaces, and last its record."""
    _kill_inside(record)
    complaints = ip_batch([f"netns delete {path.name}" for path in record.namespaces if path.exists()])
    left = [path.name for path in record.namespaces if path.exists()]
    if left:
        raise WanError(f"cannot remove the namespaces {', '.join(left)}: {complaints}")
    record.control_path.unlink(missing_ok=True)
    record.path.unlink(missing_ok=True)


def _kill_inside(record: Record) -> None:
    give_up = time.monotonic() + _KILL_TIMEOUT_S
    while pids := pids_inside(record):
        if time.monotonic() > give_up:
            raise WanError(f"the processes {pids} in bed {record.bed} survive being killed; see `ps`")
        for pid in pids:
            _kill(pid)
        time.sleep(0.002)  # again until none is left: a process may have forked meanwhile


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def pids_inside(record: Record) -> list[int]:
    """The processes that live in the bed's namespaces, found in one walk through /proc."""
    wanted = {_identity(path) for path in record.namespaces} - {None}
    spared = {os.getpid(), record.owner_pid}  # either may have stepped inside for a moment
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) not in spared and _identity(entry / "ns" / "net") in wanted
    ]


def _identity(namespace: Path) -> tuple[int, int] | None:
    try:
        seen = namespace.stat()
    except OSError:  # gone, or a zombie, which lives nowhere
        return None
    return seen.st_dev, seen.st_ino
