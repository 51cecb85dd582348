"""The limits of the engine, and the pace of heartbeats, in the configuration file."""

from dataclasses import dataclass

from cheops.config.keys import HEARTBEAT, LIMIT_FIELDS, LIMITS, given
from cheops.config.units import duration_ms, duration_s, size
from cheops.documents import Value
from cheops.engine.types import Limits

MAX_COUNT = 1_000_000  # for every limit that counts something


@dataclass(frozen=True, slots=True)
class HeartbeatConfig:
    """How often peers are asked, and after which silence one counts as down."""

    every_s: float = 1.0
    down_after_s: float = 5.0


def limits_at(value: Value) -> Limits:
    record = LIMITS.read(value)
    limits = Limits(**{LIMIT_FIELDS[key]: _number(LIMIT_FIELDS[key], at) for key, at in record.items()})
    for key, least, most in (
        ("resend", limits.resend_ms, limits.resend_most_ms),
        ("retry", limits.retry_ms, limits.retry_most_ms),
    ):
        if least > most:
            raise value.fail(f"'{key}' ({least}ms) is more than '{key}_most' ({most}ms)")
    return limits


def _number(field: str, value: Value) -> int:
    """In the unit that a field's name ends with, or a mere count."""
    if field.endswith("_ms"):
        return duration_ms(value)
    return size(value) if field.endswith("_bytes") else value.whole(minimum=1, maximum=MAX_COUNT)


def heartbeat_at(value: Value) -> HeartbeatConfig:
    record = HEARTBEAT.read(value)
    default = HeartbeatConfig()
    heartbeat = HeartbeatConfig(
        given(record, "every", duration_s, default.every_s),
        given(record, "down_after", duration_s, default.down_after_s),
    )
    if heartbeat.down_after_s < 2 * heartbeat.every_s:
        raise value.fail(
            f"'down_after' ({heartbeat.down_after_s:g}s) must be at least twice 'every' "
            f"({heartbeat.every_s:g}s), or one lost heartbeat takes a site down"
        )
    return heartbeat
