"""Limits in the configuration file: of clients of the agent's address, of the engine, and the pace of heartbeats."""

from dataclasses import dataclass

from cheops.config.settings import CLIENTS, HEARTBEAT, LIMIT_FIELDS, LIMITS, duration_ms, duration_s, optional, size
from cheops.documents import Value
from cheops.engine.settings import Limits

MAX_COUNT = 1_000_000  # for every limit that counts something


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """How often peers are asked, and after which silence one counts as down."""

    every_s: float = 1.0
    down_after_s: float = 5.0


def limits_at(value: Value) -> Limits:
    record = LIMITS.read(value)
    limits = Limits(**{LIMIT_FIELDS[key]: _limit(LIMIT_FIELDS[key], at) for key, at in record.items()})
    for key, least, most in (
        ("resend", limits.resend_ms, limits.resend_most_ms),
        ("retry", limits.retry_ms, limits.retry_most_ms),
    ):
        if least > most:
            raise value.fail(f"'{key}' ({least}ms) is more than '{key}_most' ({most}ms)")
    return limits


def _limit(field: str, value: Value) -> int:
    """In the unit that a field's name ends with, or a mere count."""
    if field.endswith("_ms"):
        return duration_ms(value)
    return size(value) if field.endswith("_bytes") else value.whole(minimum=1, maximum=MAX_COUNT)


def heartbeat_at(value: Value) -> HeartbeatConfig:
    record = HEARTBEAT.read(value)
    default = HeartbeatConfig()
    heartbeat = HeartbeatConfig(
        optional(record, "every", duration_s, default.every_s),
        optional(record, "down_after", duration_s, default.down_after_s),
    )
    if heartbeat.down_after_s < 2 * heartbeat.every_s:
        raise value.fail(
            f"'down_after' ({heartbeat.down_after_s:g}s) must be at least twice 'every' "
            f"({heartbeat.every_s:g}s), or one lost heartbeat takes a site down"
        )
    return heartbeat


_LEAST_HEAD_BYTES = 4 * 1024


@dataclass(frozen=True, slots=True)
class ClientsConfig:
    """Everything that comes from outside has a limit."""

    rate: int = 1_000  # requests per second of one token, or of one address without a token
    burst: int = 2_000  # and so many at once
    site_rate: int = 5_000  # of one other site
    connections: int = 2_000  # in all
    connections_each: int = 500  # of one address
    head_bytes: int = 64 * 1024  # of a request's line and headers
    upload_bytes: int = 1024**3  # of a form with its files
    head_timeout_s: float = 10.0  # until a request has told its headers
    stall_timeout_s: float = 30.0  # in which a body or an answer must go on
    store_bytes: int = 64 * 1024**3  # of the store, above which clients are refused
    free_bytes: int = 64 * 1024 * 1024  # of the disk, below which they are
    open_metrics: bool = False  # /metrics without a token
    audit_bytes: int = 16 * 1024 * 1024  # of a file of the audit log
    audit_files: int = 10


def clients_at(value: Value) -> ClientsConfig:
    record = CLIENTS.read(value)
    default = ClientsConfig()

    def count(at: Value) -> int:
        return at.whole(minimum=1, maximum=MAX_COUNT)

    config = ClientsConfig(
        optional(record, "rate", count, default.rate),
        optional(record, "burst", count, default.burst),
        optional(record, "site_rate", count, default.site_rate),
        optional(record, "connections", count, default.connections),
        optional(record, "connections_each", count, default.connections_each),
        optional(record, "head_size", size, default.head_bytes),
        optional(record, "upload_size", size, default.upload_bytes),
        optional(record, "head_timeout", duration_s, default.head_timeout_s),
        optional(record, "stall_timeout", duration_s, default.stall_timeout_s),
        optional(record, "store_size", size, default.store_bytes),
        optional(record, "free_size", size, default.free_bytes),
        optional(record, "open_metrics", lambda at: at.boolean(), default.open_metrics),
        optional(record, "audit_size", size, default.audit_bytes),
        optional(record, "audit_files", count, default.audit_files),
    )
    if config.head_bytes < _LEAST_HEAD_BYTES:
        raise record["head_size"].fail(f"less than {_LEAST_HEAD_BYTES} bytes is too little for any request")
    return config
