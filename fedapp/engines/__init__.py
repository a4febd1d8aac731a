"""In-process engines behind Flower's `Grid` interface."""
