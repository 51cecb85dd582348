"""Talking to an agent, from the command line or from a program.

`Agent` asks and waits; `AsyncAgent` (cheops.client.asynchronous) is for an event loop. Both answer with the
models of cheops.api.models.
"""

from cheops.client.address import AgentError, Target, UnreachableError, agent_url, target_of
from cheops.client.http import Agent

__all__ = ["Agent", "AgentError", "Target", "UnreachableError", "agent_url", "target_of"]
