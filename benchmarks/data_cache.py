"""First and second start of a data set, and what two processes share.

``python -m benchmarks.data_cache FOLDER`` decodes the data set into a fresh cache, maps it again in
a new process, then reads every byte of it in two processes at once and sums what each maps: its
resident size (RSS) and its proportional share (PSS), in which a page of two processes counts half.
Imports are not counted. Linux only.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.processes import PROCESSES, result_of
from fedapp.config.read import read_config
from fedapp.data.dataset import Dataset
from fedapp.data.load import load_dataset

LIBRARIES = ("datasets", "pyarrow", "PIL")


def start(dataset: str, cache: str) -> tuple[Dataset, str]:
    """Return the data set, and in words the time that loading took and what it imported."""
    config = read_config({"dataset": dataset, "data-cache": cache})
    begin, begin_cpu = time.perf_counter(), time.process_time()
    data = load_dataset(config)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    imported = ", ".join(name for name in LIBRARIES if name in sys.modules) or "no reading library"
    return data, f"{seconds:.3f} s ({cpu:.3f} s of CPU), imported {imported}"


def timed(dataset: str, cache: str) -> str:
    """Return the time of one start."""
    return start(dataset, cache)[1]


def shared(dataset: str, cache: str, barrier: Barrier, pipe: Connection) -> None:
    """Read all arrays, wait for the other process, and send (RSS, PSS) of the mapped files."""
    data, _ = start(dataset, cache)
    for examples in (data.train, data.test):
        examples.inputs.sum()
        examples.targets.sum()
    barrier.wait()
    pipe.send(mapped(cache))
    barrier.wait()


def mapped(cache: str) -> tuple[int, int]:
    """Return RSS and PSS in bytes of this process's maps of files in ``cache``."""
    sizes = {"Rss": 0, "Pss": 0}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if "-" in key.split()[0]:
            inside = cache in line
        elif inside and key in sizes:
            sizes[key] += int(rest.split()[0]) * 1024
    return sizes["Rss"], sizes["Pss"]


def main(folder: Annotated[str, typer.Argument(help="A data set's folder.")]) -> None:
    """Print the seconds of two starts, and the memory of two processes."""
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first", "second"):
            print(f"{name} start: {result_of(timed, folder, cache)}")
        barrier = PROCESSES.Barrier(2)
        pair = [begin(shared, folder, cache, barrier) for _ in range(2)]
        for _, pipe in pair:
            resident, share = pipe.recv()
            print(
                f"two processes: RSS {resident / 2**20:.1f} MiB, PSS {share / 2**20:.1f} MiB each"
            )
        for process, _ in pair:
            process.join()


def begin(work: Callable[..., None], *given: Any) -> tuple[SpawnProcess, Connection]:
    """Start a process, and return it and what it sends into: closed where the process fails."""
    ours, theirs = PROCESSES.Pipe()
    # Of a pair whose other process failed, one would wait for it for ever.
    process = PROCESSES.Process(target=work, args=(*given, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


if __name__ == "__main__":
    typer.run(main)
