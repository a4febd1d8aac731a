"""Write what is pinned anew: ``python -m tests.golden [KIND [RUN ...]]``, of one kind or of all.

The kinds are numbers (of all runs, or those named), errors, names, messages and datasets.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from tests.golden import datasets, messages, mistakes, names, numbers

logging.getLogger("flwr").setLevel(logging.ERROR)
KINDS = {
    "errors": mistakes.write,
    "names": names.write,
    "messages": messages.write,
    "datasets": datasets.write,
}
kind, *runs = sys.argv[1:] or ["all"]
with tempfile.TemporaryDirectory() as folder:
    if kind in ("numbers", "all"):
        numbers.write_anew(runs, Path(folder))
    for name, write in KINDS.items():
        if kind in (name, "all"):
            write(Path(folder))
