"""Data sets that need no download, chosen by `dataset`."""
