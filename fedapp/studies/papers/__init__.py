"""The papers' tables and figures, one TOML each, and their runner."""
