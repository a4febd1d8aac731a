"""Algorithms, one file each, and the Flower strategy that runs any of them."""
