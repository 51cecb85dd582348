"""HAProxy as a flow table: the agent resolves each scope once and installs a flow; HAProxy forwards the rest."""
