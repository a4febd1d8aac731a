"""Networks of one's own with what this package's have not: both trainers train them alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.in_process import metrics, model, run

FIXED = """
import torch
from torch import nn

class Features(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.register_buffer("directions", torch.randn(64, 16))
        self.head = nn.Linear(16, num_classes)

    def forward(self, x):
        return self.head(torch.cos(x.flatten(1) @ self.directions))
"""

UNUSED = """
from torch import nn

class Spare(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.head, self.spare = nn.Linear(64, num_classes), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(x.flatten(1))
"""


@pytest.mark.parametrize("text", [FIXED, UNUSED], ids=["random buffer", "unused layer"])
def test_both_trainers_train_a_network_alike(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(text)
    settings = {"model": str(path), "seed": 3, "2nn.hidden": 200}
    found = [
        run(tmp_path / "one", trainer="sequential", **settings),
        run(tmp_path / "other", trainer="batched", program="record", **settings),
    ]
    one, other = map(model, found)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(other[name], one[name], atol=1e-5, rtol=1e-4)


def test_a_round_of_nobody_records_no_updates(tmp_path: Path) -> None:
    """Each of ten clients comes with a probability of 0.02."""
    folder = run(
        tmp_path / "run",
        algorithm="dp-fedavg",
        weighting="uniform",
        fraction_train=0.02,
        record_updates=True,
        num_server_rounds=6,
    )
    replied = [row["replied"] for row in metrics(folder)[1:]]
    assert len(replied) == 6
    assert 0 in replied
