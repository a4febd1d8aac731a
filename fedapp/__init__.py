"""Federated averaging as its two papers describe it, as a Flower app."""

__version__ = "0.2.0"
