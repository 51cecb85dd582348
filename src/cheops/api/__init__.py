"""What an agent answers over HTTP: to clients, and to the agents of other sites."""
