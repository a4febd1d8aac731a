"""Write the numbers of the pinned runs anew: ``python -m tests.golden [NAME ...]``."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from tests.golden.numbers import TABLE, found, golden, read, write
from tests.golden.runs import BY_NAME

logging.getLogger("flwr").setLevel(logging.ERROR)
names = [name for name in BY_NAME if name == golden(name)]
wanted = sys.argv[1:] or names
with tempfile.TemporaryDirectory() as folder:
    pinned = read() if TABLE.exists() else {}
    for name in wanted:
        pinned[name] = found(BY_NAME[name], Path(folder))
        print(name, flush=True)
write({name: pinned[name] for name in names if name in pinned})
