"""Write what is pinned anew: ``python -m tests.golden [KIND [RUN ...]]``, of one kind or of all.

The kinds are numbers (of all runs, or those named), errors, names, messages and datasets.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

from tests.golden import datasets, messages, mistakes, names, numbers, pin
from tests.golden.runs import BY_NAME

KINDS = {
    "errors": mistakes.write,
    "names": lambda _: pin("names", names.found()),
    "messages": lambda folder: pin("messages", messages.found(folder)),
    "datasets": lambda folder: pin("datasets", datasets.found(folder)),
}
RUNS = [name for name in BY_NAME if name == numbers.golden(name)]
parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
parser.add_argument("kind", nargs="?", default="all", choices=["all", "numbers", *KINDS])
parser.add_argument("runs", nargs="*", metavar="run")
chosen = parser.parse_args()
if chosen.runs and chosen.kind != "numbers":
    parser.error(f"{chosen.kind} is written as a whole: only numbers can be of some runs")
if not {*chosen.runs} <= {*RUNS}:
    parser.error(f"the runs are {', '.join(RUNS)}")
logging.getLogger("flwr").setLevel(logging.ERROR)
with tempfile.TemporaryDirectory() as folder:
    if chosen.kind in ("numbers", "all"):
        numbers.write_anew(chosen.runs, Path(folder))
    for name, write in KINDS.items():
        if chosen.kind in (name, "all"):
            write(Path(folder))
