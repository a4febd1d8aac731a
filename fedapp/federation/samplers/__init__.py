"""Samplers of a round's clients; ``sampler`` in the run-config chooses one."""
