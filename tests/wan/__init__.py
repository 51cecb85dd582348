"""A wide-area network on one machine, to test with: cuts, delays and losses between hosts (docs/test-bed.md)."""

from tests.wan.bed import Host, Wan, missing
from tests.wan.controls import LinkStatus
from tests.wan.record import WanError

__all__ = ["Host", "LinkStatus", "Wan", "WanError", "missing"]
