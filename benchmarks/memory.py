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
import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.processes import peak_memory, result_of
from benchmarks.stand_in import write_mnist

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
        data = Path(folder) / "data"
        data.mkdir()
        write_mnist(data, EXAMPLES, 1_000, side=8)
        result_of(measure, folder, 0, 0)  # fills the cache
        print(f"{'no clients':>12}{result_of(measure, folder, 0, 0):12,.0f}", flush=True)
        for clients in in_all or IN_ALL:
            print(f"{clients:12,}", end="", flush=True)
            for m in columns:
                cell = f"{result_of(measure, folder, clients, m):,.0f}" if m <= clients else ""
                print(f"{cell:>12}", end="", flush=True)
            print()


def measure(folder: str, clients: int, a_round: int) -> float:
    """Return the peak resident memory of this process after one run, in MB."""
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
    return peak_memory()


if __name__ == "__main__":
    typer.run(main)
