"""First and second start of a data set, and what two processes share.

``python -m benchmarks.data_cache FOLDER`` decodes the data set into a fresh cache, maps it again in
a new process, then reads every byte of it in two processes at once and sums what each maps: its
resident size (RSS) and its proportional share (PSS), in which a page of two processes counts half.
Imports are not counted. Linux only.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Annotated

import typer

from fedapp.config import read_config
from fedapp.data import Dataset, load_dataset

LIBRARIES = ("datasets", "pyarrow", "PIL")
Queue = multiprocessing.Queue


def start(dataset: str, cache: str) -> tuple[Dataset, str]:
    """Return the data set, and in words the time that loading took and what it imported."""
    config = read_config({"dataset": dataset, "data-cache": cache})
    begin, begin_cpu = time.perf_counter(), time.process_time()
    data = load_dataset(config)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    imported = ", ".join(name for name in LIBRARIES if name in sys.modules) or "no reading library"
    return data, f"{seconds:.3f} s ({cpu:.3f} s of CPU), imported {imported}"


def timed(dataset: str, cache: str, results: Queue[str]) -> None:
    """Put the time of one start."""
    results.put(start(dataset, cache)[1])


def shared(dataset: str, cache: str, barrier: Barrier, results: Queue[tuple[int, int]]) -> None:
    """Read all arrays, wait for the other process, and put (RSS, PSS) of the mapped files."""
    data, _ = start(dataset, cache)
    for examples in (data.train, data.test):
        examples.inputs.sum()
        examples.targets.sum()
    barrier.wait()
    results.put(mapped(cache))
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
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as cache:
        results = context.Queue()
        for name in ("first", "second"):
            process = context.Process(target=timed, args=(folder, cache, results))
            process.start()
            print(f"{name} start: {results.get()}")
            process.join()
        barrier = context.Barrier(2)
        pair = [
            context.Process(target=shared, args=(folder, cache, barrier, results)) for _ in range(2)
        ]
        for process in pair:
            process.start()
        for _ in pair:
            resident, share = results.get()
            print(
                f"two processes: RSS {resident / 2**20:.1f} MiB, PSS {share / 2**20:.1f} MiB each"
            )
        for process in pair:
            process.join()


if __name__ == "__main__":
    typer.run(main)
