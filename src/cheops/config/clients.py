"""What people and programs may ask of the agent's address, how much and how fast, in the configuration file.

Sites are clients too, with a rate of their own. What is not said here is as `ClientsConfig` has it.
"""

from dataclasses import dataclass

from cheops.config.keys import CLIENTS, given
from cheops.config.limits import MAX_COUNT
from cheops.config.units import duration_s, size
from cheops.documents import Value

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
        given(record, "rate", count, default.rate),
        given(record, "burst", count, default.burst),
        given(record, "site_rate", count, default.site_rate),
        given(record, "connections", count, default.connections),
        given(record, "connections_each", count, default.connections_each),
        given(record, "head_size", size, default.head_bytes),
        given(record, "upload_size", size, default.upload_bytes),
        given(record, "head_timeout", duration_s, default.head_timeout_s),
        given(record, "stall_timeout", duration_s, default.stall_timeout_s),
        given(record, "store_size", size, default.store_bytes),
        given(record, "free_size", size, default.free_bytes),
        given(record, "open_metrics", lambda at: at.boolean(), default.open_metrics),
        given(record, "audit_size", size, default.audit_bytes),
        given(record, "audit_files", count, default.audit_files),
    )
    if config.head_bytes < _LEAST_HEAD_BYTES:
        raise record["head_size"].fail(f"less than {_LEAST_HEAD_BYTES} bytes is too little for any request")
    return config
