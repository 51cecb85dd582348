"""The fixtures of the bed, for its own tests."""

from tests.wan.fixtures import make_wan, wan

__all__ = ["make_wan", "wan"]
