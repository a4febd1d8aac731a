"""While a run goes on: its folder is taken, and what is logged is also written there as JSON."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import threading
from collections.abc import Iterator

from filelock import FileLock, Timeout
from flwr.common.logger import FLOWER_LOGGER

from fedapp.errors import ConfigError
from fedapp.runs.directory import RunDirectory
from fedapp.training.stack import current_stack

RELEASE_SECONDS = 30.0
"""How long a resume waits for the run before it: a ServerApp outlives its SuperLink by seconds."""


@contextlib.contextmanager
def occupied(directory: RunDirectory) -> Iterator[None]:
    """Hold the run's folder, and write ``log.jsonl`` into it.

    The system lets go of the folder when this process ends, however it does.

    Raises
    ------
    ConfigError
        Another process runs this run.
    """
    lock = _lock(directory)
    try:
        lock.acquire(timeout=RELEASE_SECONDS)
    except Timeout as error:
        raise ConfigError(
            f"run-dir = {str(directory.path)!r}: another process is at work on this run. Wait for "
            "it, stop it (`flwr list`, `flwr stop`), or choose another folder."
        ) from error
    handler = logging.FileHandler(directory.log, encoding="utf-8")
    handler.setFormatter(JsonLines())
    if current_stack():  # the other threads are other runs
        here = threading.get_ident()
        handler.addFilter(lambda record: record.thread == here)
    FLOWER_LOGGER.addHandler(handler)
    try:
        yield
    finally:
        FLOWER_LOGGER.removeHandler(handler)
        handler.close()
        lock.release()


def is_occupied(directory: RunDirectory) -> bool:
    """Return whether a process is at work on the run, on this machine."""
    lock = _lock(directory)
    if not (directory.path / ".lock").exists():
        return False
    try:
        with lock.acquire(timeout=0):
            return False
    except Timeout:
        return True


def _lock(directory: RunDirectory) -> FileLock:
    return FileLock(directory.path / ".lock")


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
