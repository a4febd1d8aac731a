"""A run's model for use without this package: safetensors, lines of PyTorch that load them, ONNX."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from fedapp.data.load import network_task
from fedapp.data.node_data import describe_task
from fedapp.files import as_folder, write_atomically, write_json
from fedapp.runs.directory import RunDirectory
from fedapp.runs.own_code import reference_to_copy, write_files
from fedapp.runs.saved_model import SavedModel
from fedapp.training.build import DTYPES, example_inputs
from fedapp.training.tensors import contiguous_copies

WEIGHTS, SCRIPT, ONNX = "weights.safetensors", "load_model.py", "model.onnx"

PLAIN = """\"\"\"{about}\"\"\"

from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

model = nn.Sequential(OrderedDict([
{layers}
])).to({dtype})
model.load_state_dict(load_file(Path(__file__).parent / "{weights}"))
model.eval()
print(model(torch.zeros({shape}, dtype={inputs})).shape)
"""

WITH_PACKAGE = """\"\"\"{about}\"\"\"

{imports}from pathlib import Path

import torch
from fedapp.config.read import read_config
from fedapp.data.node_data import read_task
from fedapp.training.build import make_module
from safetensors.torch import load_file

{folder}model = make_module(read_config({settings!r}), read_task({task!r}))
model.load_state_dict(load_file(Path(__file__).parent / "{weights}"))
model.eval()
print(model(torch.zeros({shape}, dtype={inputs})).shape)
"""

OWN = {
    "imports": "import os\n",
    "folder": 'os.environ["FEDAPP_APP"] = str(Path(__file__).parent / "code")\n',
}
"""Lines of a script of a network whose code is not of this package."""


def export(model: SavedModel, folder: Path, *, onnx: bool) -> str:
    """Write the state_dict, a script that loads it, and with ``onnx`` an ONNX model; return the script.

    Raises
    ------
    ConfigError
        The folder cannot be written.
    ModuleNotFoundError
        ``onnx`` or ``onnxscript`` is not installed.
    """
    if onnx:
        for package in ("onnx", "onnxscript"):
            importlib.import_module(package)
    folder = as_folder(folder, "--to")
    state = contiguous_copies(model.module.state_dict())
    write_atomically(folder / WEIGHTS, safetensors.torch.save(state))
    script = script_of(model)
    write_atomically(folder / SCRIPT, script.encode())
    if (code := model.config.own_code().get("model")) is not None:
        write_files(folder / "code", code)
    if model.statistics is not None:
        write_json(RunDirectory(folder).table, model.statistics.to_dict())
    if onnx:
        _write_onnx(model, folder / ONNX)
    return script


def script_of(model: SavedModel) -> str:
    """Return lines of PyTorch that build the network and load ``weights.safetensors`` beside them.

    A chain of PyTorch's own layers needs no other package; another network needs this one, as does one
    of the user's own, whose layers may do what their texts do not say.
    """
    config, example = model.config, example_inputs(model.config, model.task)
    parts = {
        "about": _about(model),
        "weights": WEIGHTS,
        "shape": tuple(example.shape),
        "inputs": example.dtype,
        "dtype": DTYPES[config.precision],
    }
    own = "model" in config.own_code()
    if is_plain(model.module) and not own:
        layers = [f'    ("{n}", nn.{layer!r}),' for n, layer in model.module.named_children()]
        return PLAIN.format(**parts, layers="\n".join(layers))
    values, prefix = config.to_run_config(), f"{config.name_of('model')}."
    settings = {key: values[key] for key in ("model", "precision", "initial-weights", "seed")}
    settings |= {key: value for key, value in values.items() if key.startswith(prefix)}
    task = describe_task(network_task(config, model.task))
    lines = dict.fromkeys(OWN, "")
    if own:
        settings["model"], lines = reference_to_copy(config, "model"), OWN
    return WITH_PACKAGE.format(**parts, **lines, settings=settings, task=task)


def is_plain(module: nn.Module) -> bool:
    """Return whether a network is a chain of PyTorch's own layers, which their texts rebuild."""
    layers = list(module.children())
    own = all(type(layer).__module__.startswith("torch.nn.modules.") for layer in layers)
    return type(module) is nn.Sequential and own and not any(list(e.children()) for e in layers)


def _about(model: SavedModel) -> str:
    """Return a description of the network's inputs and outputs."""
    task, config = model.task, model.config
    inputs = {
        "image": f"images after transform = {config.transform!r}",
        "vector": "table rows, coded with table.json: (x - mean) / deviation, categories as 0 or 1",
        "tokens": f"symbols ({task.vocabulary})",
    }.get(task.kind, task.kind)
    labels = f" Labels: {', '.join(task.labels)}." if task.labels else ""
    text = f"Model {config.model!r} of a run of fedapp. Inputs: {inputs}.{labels}"
    quoted = json.dumps(text, ensure_ascii=False)[1:-1]
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)


def _write_onnx(model: SavedModel, path: Path) -> None:
    example = example_inputs(model.config, model.task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.module,
            (example,),
            path,
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
