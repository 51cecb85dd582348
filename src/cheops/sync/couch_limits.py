"""Everything that comes from outside has a limit."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the server end."""

    body_bytes: int = 16 * MIB  # of a request, after unpacking
    documents: int = 2_000  # named in one request
    page: int = 100  # documents of the feed read at a time
    page_bytes: int = 4 * MIB  # and fewer when they are large
    long_polls: int = 256  # readers that wait for changes
    longest_wait_s: float = 60.0
    least_heartbeat_s: float = 1.0
    note_bytes: int = 65_536  # of a replicator's note (_local)
    notes: int = 1_000  # per database; the oldest one makes room, and its replication begins anew


@dataclass(frozen=True, slots=True)
class ReplicatorSettings:
    """Of the client end."""

    batch: int = 100  # changes per round
    send_bytes: int = 4 * MIB  # of documents in one request, unless a single one is larger
    answer_bytes: int = 32 * MIB
    timeout_s: float = 60.0
    heartbeat_s: float = 10.0
    checkpoint_s: float = 5.0
    checkpoint_changes: int = 1_000
    first_delay_s: float = 0.2
    longest_delay_s: float = 60.0
