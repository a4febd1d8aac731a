"""The run-config: its keys and their checks, and the components that they choose."""
