"""Pure functions on curves, partitions, updates and models."""
