"""Measures on curves and updates: pure functions."""
