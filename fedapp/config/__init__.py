"""The run-config: its keys, what they may be, and the components that they choose."""
