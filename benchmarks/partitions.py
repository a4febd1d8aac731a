"""First and second split of a data set: what flwr-datasets costs, and what the data cache saves.

``python -m benchmarks.partitions FOLDER`` splits the data set over 100 and 1,000 clients, by shards and
by Dirichlet, each in a fresh process: the first time, which imports flwr-datasets and splits, and the
second, which reads the data cache. Loading the data set, and its imports, are not counted.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Annotated

import typer

from benchmarks.processes import result_of
from fedapp.config.read import read_config
from fedapp.data.load import load_dataset, load_partition

SCHEMES = ("shards", "dirichlet")
CLIENTS = (100, 1_000)


def split(dataset: str, cache: str, partitioner: str, num_clients: int) -> str:
    """Return in words the time that a split takes, and whether it imported flwr-datasets."""
    data_keys = {"dataset": dataset, "data-cache": cache}
    config = read_config({**data_keys, "partitioner": partitioner, "num-clients": num_clients})
    data = load_dataset(config)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    load_partition(config, data, num_clients)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    imported = ", flwr-datasets imported" if "flwr_datasets" in sys.modules else ""
    return f"{seconds:.3f} s ({cpu:.3f} s of CPU{imported})"


def main(folder: Annotated[str, typer.Argument(help="The data set, e.g. FOLDER/mnist.")]) -> None:
    """Print a line for each scheme and number of clients."""
    with tempfile.TemporaryDirectory() as cache:
        load_dataset(read_config({"dataset": folder, "data-cache": cache}))
        for scheme in SCHEMES:
            for clients in CLIENTS:
                said = [result_of(split, folder, cache, scheme, clients) for _ in range(2)]
                typer.echo(f"{scheme}, K = {clients:,}: first {said[0]}; second {said[1]}")


if __name__ == "__main__":
    typer.run(main)
