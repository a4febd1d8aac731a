"""Partitioners, one file each, chosen by `partitioner`."""
