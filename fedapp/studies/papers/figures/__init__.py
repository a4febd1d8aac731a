"""The papers' figures: one module for each kind."""
