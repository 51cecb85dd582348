"""Talking to an agent, from the command line or from a program."""
