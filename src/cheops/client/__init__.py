"""Clients of an agent's API, for the command line and for programs.

    from cheops.api.models.operations import SubmitRequest
    from cheops.client import Agent

    agent = Agent("http://127.0.0.1:8079")
    agent.submit("counter", SubmitRequest(type="inc", command="redis-cli incrby counter 13"))
    print(agent.status("counter").overall)

`Agent` blocks, and uses the standard library alone so that commands start fast. `AsyncAgent`
(`cheops.client.async_agent`) is for an event loop, over aiohttp. Both share their methods (`methods`), and both return
the models of `cheops.api.models`. They raise `AgentError` if the agent refuses a request, with its `http_status`, and
`UnreachableError` if there is no response: then the request may or may not have taken effect.

Every endpoint can be called by its declaration. Those that programs use most have a method as well:

    from cheops.api.endpoints.site import GET_SITE

    agent.call(GET_SITE, "site2").state

`cheops.api.endpoints` lists the steps to add an endpoint.

This package imports the declarations and models of `cheops.api`, and nothing of its server.
"""

from cheops.client.agent import Agent
from cheops.client.target import AgentError, Target, UnreachableError, agent_url, target_of

__all__ = ["Agent", "AgentError", "Target", "UnreachableError", "agent_url", "target_of"]
