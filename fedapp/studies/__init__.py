"""Sweeps, and the papers' experiments. Nothing below imports them."""
