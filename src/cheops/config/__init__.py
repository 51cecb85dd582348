"""The configuration file of a site."""
