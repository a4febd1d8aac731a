"""Many runs: grids, learning rate searches, and workers; the record of each run is stored."""
