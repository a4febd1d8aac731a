"""Peak memory of whole runs, by clients in all (K) and clients a round (m).

    python -m benchmarks.memory

The data are a million random pictures of 8 x 8 pixels, made in a temporary folder; the model is the
2NN with 500 units a layer, 1.2 MB of parameters, so that a server that held the models of m = 1,000
clients would need 1.2 GB for them. Each run is `fedapp run` in a process of its own: three rounds, one
local step a client, every file and picture that a run leaves. The first row only imports and reads the
data.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import resource
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

PROCESSES = multiprocessing.get_context("spawn")
IN_ALL = (1_000, 100_000, 1_000_000)
A_ROUND = (10, 100, 1_000)
ROUNDS = 3
EXAMPLES = 1_000_000


def main(
    in_all: Annotated[list[int] | None, typer.Option("--clients", help="K.")] = None,
    a_round: Annotated[list[int] | None, typer.Option("--a-round", help="m.")] = None,
) -> None:
    """Print a row for each K and a column for each m."""
    columns = a_round or list(A_ROUND)
    print("Peak resident memory, MB")
    print(f"{'K':>12}" + "".join(f"{f'm = {m:,}':>12}" for m in columns))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDAPP_CACHE"] = f"{folder}/cache"
        write_pictures(Path(folder) / "data")
        measure(folder, 0, 0)  # fills the cache
        print(f"{'no clients':>12}{measure(folder, 0, 0):12,.0f}", flush=True)
        for clients in in_all or IN_ALL:
            print(f"{clients:12,}", end="", flush=True)
            for m in columns:
                cell = f"{measure(folder, clients, m):,.0f}" if m <= clients else ""
                print(f"{cell:>12}", end="", flush=True)
            print()


def measure(folder: str, clients: int, a_round: int) -> float:
    """Return the peak resident memory of one run, in MB."""
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=_run, args=(folder, clients, a_round, theirs))
    process.start()
    theirs.close()
    peak = float(ours.recv())
    process.join()
    return peak


def _run(folder: str, clients: int, a_round: int, pipe: Connection) -> None:
    from fedapp.cli.run import run
    from fedapp.config.read import read_config
    from fedapp.data.node_data import read_node_data

    data = f"dataset={folder}/data"
    if clients:
        settings = [
            data,
            f"num-clients={clients}",
            f"fraction-train={a_round / clients}",
            f"num-server-rounds={ROUNDS}",
            "2nn.hidden=500",
            "local-steps=1",
            "device=cpu",
            f"run-dir={folder}/run-{clients}-{a_round}",
        ]
        logging.disable(logging.INFO)
        run(settings)
    else:
        read_node_data(read_config({"dataset": f"{folder}/data", "num-clients": 1}), None)
    # Kilobytes on Linux, bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit)


def write_pictures(folder: Path) -> None:
    """Write random pictures and labels as IDX files."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, count in (("train", EXAMPLES), ("t10k", 1_000)):
        pictures = rng.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        for part, values in (("images-idx3", pictures), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
            (folder / f"{split}-{part}-ubyte").write_bytes(header + values.tobytes())


if __name__ == "__main__":
    typer.run(main)
