"""The `cheops` command: from the command line to one call, and its answer as a table, JSON or YAML."""
