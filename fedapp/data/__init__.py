"""Data: sources, partitions, transforms and the memory-mapped cache."""
