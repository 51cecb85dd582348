from tests.agent.rig import make_rig

__all__ = ["make_rig"]
