"""The lock on a run directory while its run is active, and its log file."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import logging
import threading
from collections.abc import Iterator
from logging import INFO
from pathlib import Path

from filelock import FileLock, Timeout
from flwr.common.logger import FLOWER_LOGGER, log
from flwr.supercore.run import RunNotRunningException

from fedapp.errors import FedappError, RunBusyError, reason_of
from fedapp.files import disk_space_needed
from fedapp.runs.directory import RunDirectory, check_is_new
from fedapp.training.batched.run_batching import current_run_batch

LOCK_TIMEOUT = 30.0
"""Longest wait for the lock in seconds: a ServerApp may outlive its SuperLink by a few."""

END_MESSAGE = "The run ended: "
"""Start of the last log message of a run that ended early."""


@contextlib.contextmanager
def locked(directory: RunDirectory, *, new: bool = False) -> Iterator[None]:
    """Hold the lock on a run directory; that of a ``new`` run must hold no other run.

    The operating system releases the lock when this process ends.

    Raises
    ------
    RunBusyError
        Another process holds the lock.
    ConfigError
        Another process has created a run here in the meantime.
    """
    lock = FileLock(_lock_file(directory))
    if is_locked(directory):
        log(INFO, "Waiting for the active run in %s", directory.path)
    with disk_space_needed(directory.path, "and repeat the command"):
        try:
            lock.acquire(timeout=LOCK_TIMEOUT)
        except Timeout as error:
            raise RunBusyError(
                f"run-dir = {str(directory.path)!r}: another process runs this run. Wait for "
                "it, stop it (`flwr list`, `flwr stop`), or choose another folder."
            ) from error
    try:
        if new:
            check_is_new(directory)
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def logged(directory: RunDirectory, *, by_flower: bool = False) -> Iterator[None]:
    """Write log messages to ``log.jsonl``, and at the end the reason if the run ends early.

    ``by_flower``: Flower runs this process, and ends it by SystemExit.
    """
    handler = LogFile(directory.log, encoding="utf-8")
    handler.setFormatter(JsonLines())
    if current_run_batch():  # other threads run other runs
        here = threading.get_ident()
        handler.addFilter(lambda record: record.thread == here)
    FLOWER_LOGGER.addHandler(handler)
    try:
        yield
    except BaseException as error:
        # Not to the terminal, which shows the exception itself.
        message = (END_MESSAGE + _end_reason(error, by_flower=by_flower), (), None)
        handler.handle(FLOWER_LOGGER.makeRecord("flwr", logging.ERROR, __file__, 0, *message))
        raise
    finally:
        FLOWER_LOGGER.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def _end_reason(error: BaseException, *, by_flower: bool) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "it was interrupted"
    if by_flower and isinstance(error, (SystemExit, RunNotRunningException)):
        return "Flower stopped it (`flwr stop`, or its SuperLink ended)"
    return str(error) if isinstance(error, FedappError) else reason_of(error)


def is_locked(directory: RunDirectory) -> bool:
    """Return whether a process on this machine holds the lock; read access to it is enough."""
    try:
        with _lock_file(directory).open("rb") as file:
            # FileLock holds an exclusive flock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _lock_file(directory: RunDirectory) -> Path:
    return directory.path / ".lock"


class LogFile(logging.FileHandler):
    """A log file that drops lines that cannot be written; the terminal has them too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own name)
        """Drop the line, without logging's traceback."""


class JsonLines(logging.Formatter):
    """Formats a message as a line of JSON: time in UTC, level, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
        }
        return json.dumps(line)
