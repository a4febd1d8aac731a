"""Two commits' numbers, bit for bit: ``python -m benchmarks.same_numbers OLD [NEW]``.

NEW is a commit too, or this working tree. Both carry out this tree's list of pinned runs
(``tests/golden/runs.py``) with this tree's driver, in float32 and in float64, on this machine. Compared
are the final parameters, bit for bit, and all metrics: clients, losses, faults, but not the seconds,
and bytes to 2 %. Of failures the clients are compared, of errors the kind: texts may be reworded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from rich.console import Console
from rich.table import Table

from tests.golden.driver import Run
from tests.golden.runs import COMPILED_RUNS, EVERY

ROOT = Path(__file__).parents[1]
DRIVER = ROOT / "tests/golden/driver.py"
PRECISIONS = ("float32", "float64")
BYTES = 0.02
"""The share by which the bytes of a round may differ."""
SHOWN = 5
"""Lines that are shown of a run; the first are of the first round that differs."""


@contextlib.contextmanager
def tree_of(commit: str | None, folder: Path) -> Iterator[Path]:
    """Yield a folder with the files of a commit, or this working tree for None."""
    if commit is None:
        yield ROOT
        return
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def begin(tree: Path, runs: Sequence[Run], folder: Path) -> subprocess.Popen[str]:
    """Start the runs with the fedapp of a tree, in a process of its own."""
    folder.mkdir(parents=True)
    listed = folder / "runs.json"
    listed.write_text(json.dumps([asdict(run) for run in runs]))
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-P", str(DRIVER), str(tree), str(listed), str(folder)]
    return subprocess.Popen(
        words,
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def differences(old: Path, new: Path) -> Iterator[str]:
    """Say in what the results of a run differ, whose folders are ``old`` and ``new``."""
    before, now = (json.loads((folder / "result.json").read_text()) for folder in (old, new))
    if kind(before["error"]) != kind(now["error"]):
        yield f"error: {before['error']!r}, now {now['error']!r}"
    if len(before["records"]) != len(now["records"]):
        yield f"{len(before['records'])} records, now {len(now['records'])}"
    for one, other in zip(before["records"], now["records"], strict=False):
        for key in dict.fromkeys((*one, *other)):
            if not same(key, one.get(key), other.get(key)):
                yield f"round {one['round']}: {key} = {one.get(key)}, now {other.get(key)}"
    yield from of_parameters(*(folder / "model.safetensors" for folder in (old, new)))


def kind(error: str) -> str:
    """Return what an error is called: the text before the first colon."""
    return error.partition(":")[0]


def same(key: str, one: Any, other: Any) -> bool:
    """Return whether two values of a metric are the same, as far as they have to be."""
    if key == "seconds":
        return True
    if key == "failures":
        return sorted(one or {}) == sorted(other or {})
    if key.startswith("bytes") and one is not None and other is not None:
        return bool(abs(one - other) <= BYTES * max(one, other))
    return json.dumps(one) == json.dumps(other)


def of_parameters(old: Path, new: Path) -> Iterator[str]:
    """Say which tensors of two files differ in a bit, and by how much."""
    before, now = (
        safetensors.numpy.load_file(path) if path.exists() else {} for path in (old, new)
    )
    if before.keys() != now.keys():
        yield f"parameters {sorted(before)}, now {sorted(now)}"
        return
    for name, tensor in before.items():
        if (tensor.dtype, tensor.shape) != (now[name].dtype, now[name].shape):
            yield f"{name}: {tensor.dtype} {tensor.shape}, now {now[name].dtype} {now[name].shape}"
        elif tensor.tobytes() != now[name].tobytes():
            yield f"{name}: differs by up to {np.abs(tensor - now[name]).max():.3g}"


def compare(trees: Sequence[Path], runs: Sequence[Run], folder: Path) -> dict[str, list[str]]:
    """Carry out the runs with both trees at the same time; return what differs, by run."""
    old, new = folder / "old", folder / "new"
    processes = [begin(tree, runs, where) for tree, where in zip(trees, (old, new), strict=True)]
    for tree, process in zip(trees, processes, strict=True):
        _, said = process.communicate()
        if process.returncode:
            raise SystemExit(f"The runs with {tree} ended with {process.returncode}:\n{said}")
    return {run.name: list(differences(old / run.name, new / run.name)) for run in runs}


def main() -> None:
    """Print what differs, run by run; exit with 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", help="the commit to compare with")
    parser.add_argument("new", nargs="?", help="another commit; this working tree unless given")
    parser.add_argument("--only", default="", help="runs whose name has this text")
    parser.add_argument("--fast", action="store_true", help="leave the compiled runs out")
    chosen = parser.parse_args()
    listed = EVERY if chosen.fast else (*EVERY, *COMPILED_RUNS)
    runs = [run for run in listed if chosen.only in run.name]
    table = Table(
        "run", "precision", "what differs", title=f"{chosen.old} and {chosen.new or ROOT}"
    )
    different = 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        where = Path(scratch)
        trees = [
            stack.enter_context(tree_of(chosen.old, where / "tree-old")),
            stack.enter_context(tree_of(chosen.new, where / "tree-new")),
        ]
        for precision in PRECISIONS:
            exact = [replace(r, settings={**r.settings, "precision": precision}) for r in runs]
            for name, found in compare(trees, exact, where / precision).items():
                different += bool(found)
                more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
                for line in (*found[:SHOWN], *more):
                    table.add_row(name, precision, line)
    console = Console(soft_wrap=not sys.stdout.isatty())
    if different:
        console.print(table)
    console.print(
        f"{len(runs)} runs in {' and '.join(PRECISIONS)}: {different} of {2 * len(runs)} differ."
    )
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
