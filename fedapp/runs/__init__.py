"""The run directory: metrics, checkpoints, plots, report, callbacks."""
