"""Running an operation on the local application."""
