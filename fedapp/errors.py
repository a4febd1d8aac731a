"""Errors that a user can mend: each names what is wrong, what is allowed and what to change."""

from __future__ import annotations


class FedappError(Exception):
    """Base of all errors that are the user's to mend; the CLI prints them without a traceback."""


class ConfigError(FedappError):
    """A run-config key, or a combination of keys, has no sensible meaning."""


class DataError(FedappError):
    """A data set, a folder or a file cannot be used as it is."""


class CheckpointError(FedappError):
    """A checkpoint or a run directory cannot be read or does not fit this run."""


class RunError(FedappError):
    """The run cannot go on: too few nodes, too few good replies, or nodes that do not fit."""
