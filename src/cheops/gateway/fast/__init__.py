"""The fast path: HAProxy as a table of flows, filled by the agent, which resolves each scope once."""
