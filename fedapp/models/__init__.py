"""The networks of the papers, one file a family, chosen by `model`."""
