"""While a run goes on: its folder is taken, and what is logged is also written there as JSON."""

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

from fedapp.errors import ConfigError, FedappError, reason_of
from fedapp.runs.directory import RunDirectory, check_is_new
from fedapp.training.batched.run_batching import current_run_batch

RELEASE_SECONDS = 30.0
"""How long a resume waits for the run before it: a ServerApp outlives its SuperLink by seconds."""

ENDED = "The run ended: "
"""How the last line of a log begins whose run did not come to its end."""


@contextlib.contextmanager
def locked(directory: RunDirectory, *, new: bool = False) -> Iterator[None]:
    """Hold the run's folder, in which there must be none yet if this is a ``new`` one.

    The system lets go of the folder when this process ends, however it does.

    Raises
    ------
    ConfigError
        Another process runs this run, or has made one here while this one waited.
    """
    lock = FileLock(_lock_file(directory))
    _acquire(lock, directory)
    try:
        if new:
            check_is_new(directory)
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, directory: RunDirectory) -> None:
    if is_locked(directory):
        log(INFO, "Waiting for the run that is at work in %s", directory.path)
    try:
        lock.acquire(timeout=RELEASE_SECONDS)
    except Timeout as error:
        raise ConfigError(
            f"run-dir = {str(directory.path)!r}: another process is at work on this run. Wait for "
            "it, stop it (`flwr list`, `flwr stop`), or choose another folder."
        ) from error


@contextlib.contextmanager
def logged(directory: RunDirectory) -> Iterator[None]:
    """Write ``log.jsonl`` into the run's folder, and at last what ended the run before its time."""
    handler = LogFile(directory.log, encoding="utf-8")
    handler.setFormatter(JsonLines())
    if current_run_batch():  # the other threads are other runs
        here = threading.get_ident()
        handler.addFilter(lambda record: record.thread == here)
    FLOWER_LOGGER.addHandler(handler)
    try:
        yield
    except BaseException as error:
        # In the file alone: the terminal shows the error itself.
        said = (ENDED + _cause(error), (), None)
        handler.handle(FLOWER_LOGGER.makeRecord("flwr", logging.ERROR, __file__, 0, *said))
        raise
    finally:
        FLOWER_LOGGER.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def _cause(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "it was interrupted"
    if isinstance(error, (SystemExit, RunNotRunningException)):
        return "Flower stopped it (`flwr stop`, or its SuperLink ended)"
    if isinstance(error, FedappError) or not isinstance(error, Exception):
        return str(error)
    return reason_of(error)


def is_locked(directory: RunDirectory) -> bool:
    """Return whether a process is at work on the run, on this machine.

    Whoever may read the folder can ask: a run of the user of a service is not everybody's to write.
    """
    try:
        with _lock_file(directory).open("rb") as file:
            # FileLock's is of the same kind, and exclusive.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _lock_file(directory: RunDirectory) -> Path:
    return directory.path / ".lock"


class LogFile(logging.FileHandler):
    """A file of which a full disk takes lines and no more: the terminal has them too."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's own name)
        """Leave the line out, without the traceback that logging prints for each."""


class JsonLines(logging.Formatter):
    """A line of JSON a message: time in UTC, level, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        time = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
        }
        return json.dumps(line)
