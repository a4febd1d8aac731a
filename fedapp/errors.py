"""Errors that a user can fix: each names what is wrong, what is allowed and what to change."""

from __future__ import annotations

import traceback
from pathlib import Path

REASON_LENGTH = 500
"""Length at which text from a node is cut off, so that it cannot fill the disk of the server."""

ROOT = Path(__file__).parent.parent
OURS = (ROOT / "fedapp", ROOT / "strategies")
"""This package's folders."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, which an author of an algorithm does not edit."""


class FedappError(Exception):
    """Base of all errors that a user can fix; the CLI prints them without a traceback."""


class ConfigError(FedappError):
    """A run-config key, or a combination of keys, is not allowed."""


class RunBusyError(ConfigError):
    """Another process runs the run."""


class ComponentError(ConfigError):
    """The code of a component is not there, cannot be imported, or defines no such component."""


class DataError(FedappError):
    """A data set, a folder or a file cannot be used as it is."""


class CheckpointError(FedappError):
    """A checkpoint or a run directory cannot be read, or belongs to another run."""


class RunError(FedappError):
    """The run cannot continue: too few nodes, too few accepted replies, or nodes with other data."""


def one_line(text: object) -> str:
    """Return text from a node as one line of at most REASON_LENGTH characters that can be printed."""
    line = " ".join(str(text).split())[:REASON_LENGTH]
    return "".join(each for each in line if each.isprintable()) or "no reason"


def reason_of(error: BaseException) -> str:
    """Return the error, and the last line of the user's own code that raised it.

    If there is none, it is the last one outside of installed packages. Errors that a user can fix, and
    diverged training, are returned without the line.
    """
    message = "".join(traceback.format_exception_only(error)).strip()
    if isinstance(error, (FedappError, FloatingPointError)):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not INSTALLED.intersection(Path(frame.filename).parts)]
    own = [
        f for f in outside if not any(Path(f.filename).is_relative_to(folder) for folder in OURS)
    ]
    if not frames:
        return message
    frame = (own or outside or frames)[-1]
    file = "/".join(Path(frame.filename).parts[-2:])
    return f"{message[: REASON_LENGTH - 200]} ({file}, line {frame.lineno}, in {frame.name})"
