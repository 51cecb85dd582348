"""Every key that the configuration file knows, section by section.

The readers take their keys from here and the reference in docs/configuration.md is compared with them, so
that neither can know a key that the other does not. NAME stands for a name that the user chooses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from cheops.documents import Value
from cheops.engine.types import Limits

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
        *("matrix", "read", "show", "reset", "checkpoint", "on_error", "decompose", "logic", "parallel"),
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


def given(record: Mapping[str, Value], key: str, read: Callable[[Value], T], default: T) -> T:
    """What stands under a key, or the default where it is left out."""
    return read(record[key]) if key in record else default
