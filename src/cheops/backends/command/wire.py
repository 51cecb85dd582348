"""The messages between the agent and a worker: one order, one report, over a stream socket.

Both ends are this package, started from the same files, so there are no versions. A frame is its length and
its body. Words of a command cannot hold a NUL byte, so NUL separates them. While a command runs the agent
sends nothing but CANCEL; a worker that is idle ignores it, since it came too late. The end of the stream
is the end of the agent.

Spawner and workers import this: it must stay small.
"""

import socket
import struct
from enum import StrEnum

from cheops.backends.command.typing_names import NamedTuple

_LENGTH = struct.Struct("!I")
_ORDER = struct.Struct("!dQqqqq?I")
_REPORT = struct.Struct("!BiQIBd")
_UNLIMITED = -1

CANCEL = _LENGTH.pack(0)

# How long a command may take to end after SIGTERM, and what it left behind after SIGKILL.
GRACE_S = 2.0
SWEEP_S = 5.0


class CommandStatus(StrEnum):
    """How a command ended. What is neither EXITED nor NOT_STARTED may have had an effect."""

    EXITED = "exited"
    TIMED_OUT = "timed out"
    NOT_STARTED = "not started"
    CANCELLED = "cancelled"
    LOST = "lost"


_STATUSES = tuple(CommandStatus)


class Order(NamedTuple):
    """A command to run."""

    argv: tuple[bytes, ...]
    environment: tuple[bytes, ...]  # NAME=value
    cwd: bytes
    user: bytes  # empty: the agent's own
    timeout_s: float
    max_output_bytes: int
    cpu_s: int | None = None
    memory_bytes: int | None = None
    open_files: int | None = None
    processes: int | None = None
    with_errors: bool = True  # what it writes on standard error is part of the output

    @property
    def limits(self) -> tuple[int | None, ...]:
        return (self.cpu_s, self.memory_bytes, self.open_files, self.processes)


class Report(NamedTuple):
    """How a command ended; `text` is its output, or why it was not started."""

    status: CommandStatus
    text: bytes
    exit_code: int = 0
    dropped_bytes: int = 0
    left_behind: int = 0
    is_clean: bool = True
    duration_s: float = 0.0


def frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def unframe(buffer: bytearray) -> bytes | None:
    """Remove the first complete frame from the buffer; None if there is none yet."""
    if len(buffer) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
    if len(buffer) < end:
        return None
    body = bytes(buffer[_LENGTH.size : end])
    del buffer[:end]
    return body


def read_frame(stream: socket.socket) -> bytes | None:
    """Wait for a frame; None if the other side has closed."""
    head = _read_exactly(stream, _LENGTH.size)
    return _read_exactly(stream, _LENGTH.unpack(head)[0]) if head is not None else None


def _read_exactly(stream: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = stream.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def pack_order(order: Order) -> bytes:
    limits = (_UNLIMITED if limit is None else limit for limit in order.limits)
    head = _ORDER.pack(order.timeout_s, order.max_output_bytes, *limits, order.with_errors, len(order.argv))
    return head + b"\0".join((order.cwd, order.user, *order.argv, *order.environment))


def unpack_order(body: bytes) -> Order:
    timeout_s, max_output_bytes, *limits, with_errors, words = _ORDER.unpack_from(body)
    cwd, user, *rest = body[_ORDER.size :].split(b"\0")
    cpu_s, memory_bytes, open_files, processes = (None if n == _UNLIMITED else n for n in limits)
    return Order(
        tuple(rest[:words]),
        tuple(rest[words:]),
        cwd,
        user,
        timeout_s,
        max_output_bytes,
        cpu_s,
        memory_bytes,
        open_files,
        processes,
        with_errors,
    )


def pack_report(report: Report) -> bytes:
    head = _REPORT.pack(
        _STATUSES.index(report.status),
        report.exit_code,
        report.dropped_bytes,
        report.left_behind,
        report.is_clean,
        report.duration_s,
    )
    return head + report.text


def unpack_report(body: bytes) -> Report:
    status, exit_code, dropped, left_behind, is_clean, duration_s = _REPORT.unpack_from(body)
    text = body[_REPORT.size :]
    return Report(_STATUSES[status], text, exit_code, dropped, left_behind, bool(is_clean), duration_s)
