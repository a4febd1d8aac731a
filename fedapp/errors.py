"""Errors that a user can mend: each names what is wrong, what is allowed and what to change."""

from __future__ import annotations

import traceback
from pathlib import Path

REASON_LENGTH = 500
"""A node's own words are cut off here, so that none can fill the disk of the server."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders whose code is nobody's who writes an algorithm."""


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


def plain(reason: object) -> str:
    """Return a node's own words as one line of bounded length."""
    return " ".join(str(reason).split())[:REASON_LENGTH] or "no reason"


def reason_of(error: Exception) -> str:
    """Return what was raised, and where: the last line outside of installed packages.

    An error that is the user's to mend says all by itself, and so does training that diverged.
    """
    said = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, (FedappError, FloatingPointError)):
        return said
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not INSTALLED.intersection(Path(frame.filename).parts)]
    if not (own or frames):
        return said
    frame = (own or frames)[-1]
    file = "/".join(Path(frame.filename).parts[-2:])
    return f"{said[: REASON_LENGTH - 200]} ({file}, line {frame.lineno}, in {frame.name})"
