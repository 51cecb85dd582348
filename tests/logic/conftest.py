from tests.agent.rig import make_rig
from tests.wan.fixtures import make_wan, wan

__all__ = ["make_rig", "make_wan", "wan"]
