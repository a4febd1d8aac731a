"""Many runs: grids, tuned cells, and the workers that run them; a run is done once and kept."""
