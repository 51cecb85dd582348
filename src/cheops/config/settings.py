"""How a setting of the configuration file is declared and read: its key, its value's type and unit, its limits.

A duration carries its unit (`500ms`, `1.5s`, `2m`), and so does a size (`64KiB`, `1GB`; KB is 1000 bytes, KiB is
1024). A number without a unit is refused rather than guessed. A path starts at the directory of the file, or at the
user's home (`~`). Names of sites, services and types are those that scope-lang takes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

from cheops.documents import Value
from cheops.engine.settings import Limits
from cheops.errors import ClientError
from cheops.scope.names import name_problem, normal
from cheops.text import listed, printable, shortened

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Section:
    """A place of the file with known keys."""

    path: str
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def read(self, value: Value) -> dict[str, Value]:
        return value.record(required=self.required, optional=self.optional)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of this section, from the root."""
        start = f"{self.path}." if self.path else ""
        return tuple(f"{start}{key}" for key in (*self.required, *self.optional))


# The engine's own limits under their own names; a duration carries its unit in the value, not in the key.
LIMIT_FIELDS = {
    field.name.removesuffix("_ms").removesuffix("_bytes")
    + ("_size" if field.name.endswith("_bytes") else ""): field.name
    for field in fields(Limits)
}

SITE = Section(
    "",
    required=("site",),
    optional=(
        *("listen", "advertise", "data", "peers", "services", "types", "limits", "heartbeat", "notify"),
        *("gateway", "security", "clients", "demo"),
    ),
)
SECURITY = Section("security", optional=("folder", "ca_key", "clock_skew", "renew_before", "valid_for"))
CLIENTS = Section(
    "clients",
    optional=(
        *("rate", "burst", "site_rate", "connections", "connections_each", "head_size", "upload_size"),
        *("head_timeout", "stall_timeout", "store_size", "free_size"),
        *("open_metrics", "audit_size", "audit_files"),
    ),
)
SERVICE = Section(
    "services.NAME",
    required=("url",),
    optional=(
        *("listen", "advertise", "outbound", "hosts", "carriers", "add_carrier"),  # see config/gateway.py
        *("id", "items", "refs", "matrix", "exists", "find", "auth"),  # see config/replication.py
        *("credentials", "credential_headers", "timeout", "keep_response"),
    ),
)
AUTH = Section("services.NAME.auth", optional=("file", "command", "every"))
GATEWAY = Section(
    "gateway",
    optional=(
        *("listen", "advertise", "proxy", "forwarded_headers", "connections", "head_size", "repeat_size"),
        *("connect_timeout", "head_timeout", "stall_timeout", "silence_timeout"),
        *("tunnel_timeout", "keep_alive", "warm", "warm_for", "carriers", "carriers_for", "stop_timeout"),
        *("data_plane", "flows"),
    ),
)
TYPE = Section(
    "types.NAME",
    optional=(
        *("backend", "options", "matrix", "read", "show", "reset", "checkpoint"),
        *("on_error", "decompose", "logic", "parallel"),
        *("allow", "timeout", "max_output", "cwd", "env", "user", "shell", "limits"),
        *("no_new_privileges", "retry_on", "policy"),
    ),
)
POLICY = Section("types.NAME.policy", optional=("sites", "matrix", "operate"))
CHECKPOINT = Section("types.NAME.checkpoint", required=("write",), optional=("read", "after"))
DECOMPOSE = Section("types.NAME.decompose", required=("amount", "unit"))
COMMAND_LIMITS = Section("types.NAME.limits", optional=("cpu", "memory", "files", "processes"))
LIMITS = Section("limits", optional=tuple(LIMIT_FIELDS))
DEMO = Section("demo", required=("wires",))
HEARTBEAT = Section("heartbeat", optional=("every", "down_after"))
NOTIFY = Section(
    "notify.NAME",
    optional=(
        *("webhook", "command", "mail", "on", "summary", "others"),
        *("types", "operations", "resources", "statuses", "timeout", "retry_most"),
    ),
)
NOTIFY_WEBHOOK = Section("notify.NAME.webhook", required=("url",), optional=("secret_file",))
NOTIFY_MAIL = Section(
    "notify.NAME.mail",
    required=("smtp", "from", "to"),
    optional=("starttls", "user", "password_file"),
)

_SECTIONS = (
    *(SITE, SECURITY, CLIENTS, DEMO),
    *(SERVICE, AUTH, GATEWAY, TYPE, POLICY, CHECKPOINT, DECOMPOSE, COMMAND_LIMITS, LIMITS, HEARTBEAT),
    *(NOTIFY, NOTIFY_WEBHOOK, NOTIFY_MAIL),
)


def known_keys() -> tuple[str, ...]:
    """All keys of the file, such as `types.NAME.checkpoint.after`."""
    return tuple(key for section in _SECTIONS for key in section.keys)


def optional(record: Mapping[str, Value], key: str, read: Callable[[Value], T], default: T) -> T:
    """What stands under a key, or the default where it is left out."""
    return read(record[key]) if key in record else default


def name_at(value: Value) -> str:
    name = normal(value.string())
    if problem := name_problem(name):
        raise value.fail(problem)
    return name


def named_at(value: Value) -> dict[str, Value]:
    """Names as scope-lang has them, and what stands under each."""
    values = value.mapping()
    for name, at in values.items():
        if problem := name_problem(name):
            raise at.fail(problem)
    return values


def path_at(value: Value, folder: Path) -> Path:
    """The path that stands at a place of a document."""
    text = value.string()
    if not text.strip() or "\0" in text:
        raise value.fail("a path cannot be empty or hold the character U+0000")
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise value.fail(f"there is no such home directory: {text.split('/')[0]}") from None


MAX_DURATION_S = 86_400.0
MAX_LONG_DURATION_S = 36_500 * 86_400.0
MAX_SIZE_BYTES = 2**50

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z]*)")
_MICROSECONDS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_LONG_MICROSECONDS = {**_MICROSECONDS, "d": 86_400_000_000}
_BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}


class UnitError(ClientError):
    """A text is not a duration or a size; it says what would be."""


def duration_us(text: str) -> int:
    """The microseconds of a duration such as 10ms, 1.5s or 2m; raises UnitError."""
    return _parse_quantity(text, _MICROSECONDS, "a duration, such as 500ms, 1.5s or 2m", ("s", "ms"))


def size_bytes(text: str) -> int:
    """The bytes of a size such as 64KiB or 1GB; raises UnitError."""
    return _parse_quantity(text, _BYTES, "a size, such as 64KiB or 1GB", ("B", "KiB"))


def duration_s(value: Value) -> float:
    """The duration at a place of a document, from 1 ms to a day."""
    return duration_ms(value) / 1_000


def duration_ms(value: Value) -> int:
    us = _parsed(value, duration_us)
    if us % 1_000 or not 1_000 <= us <= MAX_DURATION_S * 1_000_000:
        raise value.fail(f"expected whole milliseconds from 1ms to 24h, found '{value.string()}'")
    return us // 1_000


def long_duration_us(text: str) -> int:
    """The same with days, such as 30d; raises UnitError."""
    return _parse_quantity(text, _LONG_MICROSECONDS, "a duration, such as 12h or 30d", ("d", "h"))


def long_seconds(text: str) -> float:
    """The seconds of a duration such as 12h or 30d; raises UnitError."""
    return _parse_quantity(text, _LONG_MICROSECONDS, "a duration, such as 12h or 30d", ("d", "h")) / 1_000_000


def long_duration_s(value: Value) -> float:
    """What may last longer than a day, such as 30d: from a second to a hundred years."""
    us = _parsed(value, long_duration_us)
    if not 1_000_000 <= us <= MAX_LONG_DURATION_S * 1_000_000:
        raise value.fail(f"expected a duration from 1s to 36500d, found '{value.string()}'")
    return us / 1_000_000


def size(value: Value) -> int:
    """The size at a place of a document, in bytes."""
    found = _parsed(value, size_bytes)
    if not 1 <= found <= MAX_SIZE_BYTES:
        raise value.fail(f"expected a size from 1B to 1024TiB, found '{value.string()}'")
    return found


def _parsed(value: Value, parse: Callable[[str], int]) -> int:
    try:
        return parse(value.string())
    except UnitError as error:
        raise value.fail(str(error)) from None


def _parse_quantity(text: str, units: dict[str, int], wanted: str, usual: tuple[str, str]) -> int:
    """The text in the smallest unit, which it must not be finer than."""
    shown = printable(shortened(text))
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise UnitError(f"expected {wanted}, found '{shown}'")
    number, unit = found.groups()
    if not unit:
        raise UnitError(f"'{shown}' has no unit; write {number}{usual[0]} or {number}{usual[1]}")
    if unit not in units:
        raise UnitError(f"'{shown}' has an unknown unit; {_unit_hint(number, unit, units)}")
    amount = Decimal(number) * units[unit]
    if amount != amount.to_integral_value():
        raise UnitError(f"'{shown}' is finer than can be told apart")
    return int(amount)


def _unit_hint(number: str, unit: str, units: dict[str, int]) -> str:
    """What to write instead: the unit in its right spelling, or one that it may have stood for."""
    starts = sorted(known for known in units if known.casefold().startswith(unit.casefold()))
    if starts:
        return "write " + " or ".join(f"{number}{known}" for known in starts)
    return f"Units: {listed(units)}"
