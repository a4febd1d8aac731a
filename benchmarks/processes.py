"""Functions in processes of their own: one to its result, or several called all at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

PROCESSES = multiprocessing.get_context("spawn")
Call = Callable[[], None]
Result = TypeVar("Result")


def result_of(work: Callable[..., Result], *given: Any) -> Result:
    """Return what a function returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as process:
        return process.submit(work, *given).result()


def peak_memory() -> float:
    """Return the peak resident memory of this process, in MB."""
    # Kilobytes on Linux, bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@contextlib.contextmanager
def together(make: Callable[..., Call], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Call]:
    """Yield a call of what ``make`` returns in each process, one for each of ``arguments``."""
    pairs = [PROCESSES.Pipe() for _ in arguments]
    started = [
        PROCESSES.Process(target=_serve, args=(theirs, make, given), daemon=True)
        for given, (_, theirs) in zip(arguments, pairs, strict=True)
    ]
    for process, (_, theirs) in zip(started, pairs, strict=True):
        process.start()
        theirs.close()  # so that a process that has died is an error here, not a wait
    try:
        for ours, _ in pairs:
            ours.recv()
        yield lambda: _call(pairs)
    finally:
        for (ours, _), process in zip(pairs, started, strict=True):
            ours.close()
            process.join(5)
            process.kill()


def _call(pairs: Sequence[tuple[Connection, Connection]]) -> None:
    for ours, _ in pairs:
        ours.send(True)
    for ours, _ in pairs:
        ours.recv()


def _serve(pipe: Connection, make: Callable[..., Call], given: tuple[Any, ...]) -> None:
    call = make(*given)
    pipe.send(True)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            call()
            pipe.send(True)
