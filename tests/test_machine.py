"""What a process takes from its machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedapp.machine import keep_memory

FAULTS = """
import resource
import torch
from fedapp.machine import keep_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

keep_memory()
for turn in range(20):
    before = faults()
    blocks = [torch.zeros(25_000_000) for _ in range(3)]  # 100 MB each
    del blocks
    print(faults() - before)
"""


@pytest.mark.process
@pytest.mark.skipif(not keep_memory(), reason="needs glibc, whose malloc has these settings")
def test_memory_that_is_freed_is_there_for_the_next_batch() -> None:
    """300 MB are 73,242 pages of 4 KiB, in each turn; they come in the first few alone."""
    said = subprocess.run(
        [sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True
    ).stdout
    turns = [int(faults) for faults in said.split()]
    assert sum(turns[:10]) > 100  # also with pages of 2 MiB
    assert sum(turns[10:]) < 0.01 * 73_242
