"""Two commits' seconds a round, in turns: ``python -m benchmarks.same_speed OLD [NEW [W0 W1 ...]]``.

NEW is a commit, or ``.``, the default, for this working tree. Each commit runs in a process of its own
with its own benchmarks, and the two take turns, first one and then the other, so that a machine that is
slow for a while is slow for both. Printed are the medians, each commit's spread (the third quartile less
the first, as a share of the median), and the median over the turns of new over old.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.same_numbers import tree_of
from benchmarks.turns import conditions, ratio

WORKER = """
import importlib, logging, sys, tempfile, time
import torch
torch.set_num_threads(1)
logging.getLogger("flwr").setLevel(logging.WARNING)
name, trainer = sys.argv[1:]
main, rows = importlib.import_module("benchmarks.__main__"), importlib.import_module("benchmarks.rows")
read_data = getattr(main, "read_node_data", None) or main.read_holdings
with tempfile.TemporaryDirectory() as folder:
    if name == "W0":
        config, repeat = main._idle_config(100, folder), main.IDLE_ROUNDS
        call = rows.inline_round(config, read_data(config, None), main.idle_app.app)
    else:
        config, repeat = main.WORKLOADS[name].config(folder, 1), 1
        config = rows.read_config({**config.to_run_config(), "trainer": trainer})
        call = rows.inline_round(config, read_data(config, None))
    call()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(repeat):
            call()
        print((time.perf_counter() - began) / repeat, flush=True)
"""
"""One commit's side: it needs of a commit what every commit's ``benchmarks`` has had."""


def start(tree: Path, name: str, trainer: str) -> subprocess.Popen[str]:
    """Start one commit's process, and wait until it has taken one round."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-P", "-c", WORKER, name, trainer]
    process = subprocess.Popen(
        words, env=environment, cwd=tree, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    _answer(process, "ready")
    return process


def _answer(process: subprocess.Popen[str], expected: str = "") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line or (expected and line != expected):
        raise SystemExit(f"A worker ended: {line or 'see what it printed above'}.")
    return line


def seconds(process: subprocess.Popen[str]) -> float:
    """Return the seconds of one more turn."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(_answer(process))


def spread(times: Sequence[float]) -> float:
    """Return the distance of the quartiles as a share of the median."""
    first, _, third = statistics.quantiles(times, n=4)
    return (third - first) / statistics.median(times)


def main(arguments: Sequence[str]) -> None:
    """Print a row a workload and trainer."""
    usage = "python -m benchmarks.same_speed [-h] [--turns TURNS] OLD [NEW [W0 W1 ...]]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default=".")
    parser.add_argument("names", nargs="*", default=["W0", "W1", "W2"], metavar="W0 .. W5")
    parser.add_argument("--turns", type=int, default=10)
    chosen = parser.parse_args(arguments)
    new = None if chosen.new == "." else chosen.new
    columns = ("what", "old, s", "spread", "new, s", "spread", "new / old")
    table = Table(*columns, title=f"{chosen.old} and {chosen.new}", title_justify="left")
    console = Console()
    console.print(conditions(chosen.turns), highlight=False)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        trees = [
            stack.enter_context(tree_of(commit, Path(folder) / side))
            for side, commit in (("old", chosen.old), ("new", new))
        ]
        for name in chosen.names:
            for trainer in ("sequential",) if name == "W0" else ("sequential", "batched"):
                pair = [start(tree, name, trainer) for tree in trees]
                turns = [[seconds(process) for process in pair] for _ in range(chosen.turns)]
                for process in pair:
                    process.communicate()
                old, fresh = zip(*turns, strict=True)
                row = name if name == "W0" else f"{name}, {trainer}"
                cells = [
                    cell
                    for times in (old, fresh)
                    for cell in (f"{statistics.median(times):.5f}", f"{spread(times):.1%}")
                ]
                table.add_row(row, *cells, f"{ratio(fresh, old):.3f}")
    console.print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
