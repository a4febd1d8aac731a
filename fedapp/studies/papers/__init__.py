"""The tables and figures of the papers: one TOML each, their runs, results and pages."""
