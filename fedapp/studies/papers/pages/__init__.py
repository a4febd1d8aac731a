"""The pages of experiments and their index."""
