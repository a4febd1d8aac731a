"""Write what is pinned anew: ``python -m tests.golden [KIND [RUN ...]]``, of one kind or of all.

The kinds are numbers (of all runs, or those named), errors, names, messages and datasets.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path

from tests.golden import datasets, messages, mistakes, names, numbers
from tests.golden.runs import BY_NAME

KINDS = {
    "errors": mistakes.write,
    "names": names.write,
    "messages": messages.write,
    "datasets": datasets.write,
}
RUNS = [name for name in BY_NAME if name == numbers.golden(name)]
parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
parser.add_argument("kind", nargs="?", default="all", choices=["all", "numbers", *KINDS])
parser.add_argument("runs", nargs="*", metavar="run")
chosen = parser.parse_args()
if not {*chosen.runs} <= {*RUNS}:
    parser.error(f"the runs are {', '.join(RUNS)}")
logging.getLogger("flwr").setLevel(logging.ERROR)
with tempfile.TemporaryDirectory() as folder:
    if chosen.kind in ("numbers", "all"):
        numbers.write_anew(chosen.runs, Path(folder))
    for name, write in KINDS.items():
        if chosen.kind in (name, "all"):
            write(Path(folder))
