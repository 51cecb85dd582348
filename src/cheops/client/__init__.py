"""Talking to an agent, from the command line or from a program.

`Agent` asks and waits; `AsyncAgent` (cheops.client.async_agent) is for an event loop. Both answer with the
models of cheops.api.models.
"""

from cheops.client.agent import Agent
from cheops.client.target import AgentError, Target, UnreachableError, agent_url, target_of

__all__ = ["Agent", "AgentError", "Target", "UnreachableError", "agent_url", "target_of"]
