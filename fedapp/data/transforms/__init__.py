"""Transforms, one file each, chosen by `transform`."""
