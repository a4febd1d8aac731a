"""Apps with components of their own, for tests in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from fedapp.cli.main import app as command_line
from fedapp.config import app_folder, components, own_code, read, registry
from fedapp.studies.sweep import identity

SIGNS = """
from typing import ClassVar
from pydantic import Field
from fedapp.training.algorithm import Algorithm

class Signs(Algorithm):
    \"\"\"Local steps along the sign of the gradient.\"\"\"

    name: ClassVar[str] = "signs"

    scale: float = Field(0.01, gt=0, description="Length of a step.")

    def gradient(self, differentiate, params, batch, context):
        gradient, loss = differentiate(params, batch)
        return {name: self.scale * tensor.sign() for name, tensor in gradient.items()}, loss
"""
POINTS = """
from typing import ClassVar
import numpy as np
from fedapp.data.dataset import Dataset, Examples, Task
from fedapp.data.embedded.embedded import Embedded

class Points(Embedded):
    \"\"\"Points on a line.\"\"\"

    name: ClassVar[str] = "points"

    def load(self):
        inputs = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
        examples = Examples(inputs, (inputs[:, 0] > 0).astype(np.int64))
        return Dataset("points", Task("vector", (1,), 2), examples, examples, "points-1")
"""
SPLIT = """
from typing import ClassVar
import numpy as np
from fedapp.data.dataset import from_index_sets
from fedapp.data.partition.partitioning import Partitioning

class Split(Partitioning):
    \"\"\"Every K-th example.\"\"\"

    name: ClassVar[str] = "every-kth"

    def split(self, examples, num_clients, seed):
        return from_index_sets([np.arange(k, len(examples), num_clients) for k in range(num_clients)])
"""
DOUBLE = """
from typing import ClassVar
from fedapp.data.transforms.transform import Transform

class Double(Transform):
    \"\"\"Inputs times two.\"\"\"

    name: ClassVar[str] = "double"

    def test(self, inputs, dtype):
        return 2 * super().test(inputs, dtype)
"""
LAST = """
from typing import ClassVar
from fedapp.federation.samplers.sampler import Sampler

class Last(Sampler):
    \"\"\"The clients with the highest ids.\"\"\"

    name: ClassVar[str] = "last"

    def sample(self, candidates):
        return list(candidates.clients)[-candidates.number :]
"""
NETS = """
import math
from torch import nn
from parts import hidden

class Wide(nn.Module):
    \"\"\"A wide layer.\"\"\"

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), hidden(math.prod(input_shape)), nn.ReLU(), nn.Linear(16, num_classes)
        )

    def forward(self, inputs):
        return self.layers(inputs)

class ForDigits(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""
PARTS = """
from torch import nn

def hidden(inputs):
    return nn.Linear(inputs, 16)
"""
ROWS = """
import json
from typing import ClassVar
from pydantic import Field
from fedapp.federation.callback import RunCallback

class Rows(RunCallback):
    \"\"\"Writes what it is called with, a line of JSON a call, beside the run's own files.\"\"\"

    name: ClassVar[str] = "rows"

    label: str = Field("", description="What each line begins with.")

    def write(self, *values):
        with (self.directory / "rows.jsonl").open("a") as file:
            file.write(json.dumps([*([self.label] if self.label else []), *values]) + "\\n")

    def on_start(self, state):
        self.write("start", state.round, self.settings["seed"])

    def on_round(self, result, state):
        self.write("round", result.round, result.metrics["test_accuracy"])

    def on_end(self, state):
        self.write("end", state.round)

    def close(self):
        self.write("close")
"""
PYPROJECT = """
[project]
name = "app"

[project.entry-points."fedapp.algorithms"]
signs = "signs:Signs"

[tool.flwr.app.components]
serverapp = "fedapp.server_app:app"

[tool.flwr.app.config]
algorithm = "signs"
signs.scale = 0.02
seed = 0
"""
FILES = {
    "signs.py": SIGNS,
    "points.py": POINTS,
    "split.py": SPLIT,
    "double.py": DOUBLE,
    "last.py": LAST,
    "nets.py": NETS,
    "parts.py": PARTS,
    "rows.py": ROWS,
}


def forget() -> None:
    """Forget which code this process has imported, as a new process has none."""
    for cache in (
        app_folder.manifest,
        components._installed,
        components._own_component,
        components.entry_points,
        own_code.import_file,
        own_code.import_module,
        read.config_of,
        identity._name,
        identity._canonical,
    ):
        cache.cache_clear()


@contextmanager
def app_in(folder: Path) -> Iterator[Path]:
    """Let this process import the files of ``folder``, written by ``write``, until the end."""
    path = list(sys.path)
    forget()
    try:
        yield folder
    finally:
        sys.path[:] = path
        reload(folder)
        registry.source_digest.cache_clear()


def reload(folder: Path) -> None:
    """Forget the code of ``folder``, as a new process does after a file has changed."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(folder)):
            del sys.modules[name]
    forget()


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files into ``folder``."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def invoke(*words: str) -> str:
    """Return the output of a command, or its error."""
    result = CliRunner().invoke(command_line, list(words))
    return result.output if result.exception is None else str(result.exception)
