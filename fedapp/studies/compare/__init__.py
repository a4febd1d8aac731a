"""The comparison of runs: their settings, curves and numbers side by side."""
