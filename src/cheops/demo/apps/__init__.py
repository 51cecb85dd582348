"""The applications of the demo. They know nothing of Cheops, and are run as scripts, by their path."""
