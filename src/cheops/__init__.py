"""Cheops makes one application instance per site act together as one geo-distributed application."""

__version__ = "0.1.0"
