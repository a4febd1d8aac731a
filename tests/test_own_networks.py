"""Networks of one's own with what this package's have not: both trainers train them alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedapp.config.read import read_config
from fedapp.config.settings import Scalar
from fedapp.errors import ConfigError
from fedapp.runs.export import export
from fedapp.runs.saved_model import load_model
from fedapp.training.build import make_module
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


FROZEN = """
from torch import nn

class Tuned(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body, self.norm = nn.Linear(64, 16), nn.LayerNorm(16)
        self.head = nn.Linear(16, num_classes)
        self.body.requires_grad_(False)
        self.norm.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.norm(self.body(x.flatten(1)).relu()))
"""

PRETRAINED = """
from torch import nn

class Pretrained(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16))
        self.head = nn.Linear(16, num_classes)
        nn.init.normal_(self.body[1].running_mean)
        self.body.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())
"""

RECURRENT = """
from torch import nn

class Rows(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.cells, self.head = nn.GRU(8, 5, batch_first=True), nn.Linear(5, num_classes)

    def forward(self, x):
        return self.head(self.cells(x.squeeze(1))[0][:, -1])
"""

TIED = """
from torch import nn

class Tied(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)
        self.two.weight, self.head = self.one.weight, nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head(self.two(self.one(x.flatten(1)).relu()))
"""

WIRED = """
import torch
from torch import nn

class Wired(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.inputs = torch.randperm(64)[:24].tolist()
        self.head = nn.Linear(24, num_classes)

    def forward(self, x):
        return self.head(x.flatten(1)[:, self.inputs])
"""

NAMED = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.{first}, self.{second} = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(10))
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head(x.flatten(1)) * self.{first} + self.{second}
"""

EVALUATED = """
from torch import nn

class Network(nn.Module):
    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.first, self.head = {first}, nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head({inputs})
"""


def own(folder: Path, text: str) -> dict[str, Scalar]:
    """Return the settings of a run of the network in `text`."""
    path = folder / "own.py"
    path.write_text(text)
    return {"model": str(path), "seed": 3, "2nn.hidden": 200}


BY_CLIENTS: dict[str, Scalar] = {"algorithm": "fedbn", "evaluation": "clients"}
FULL_BATCH: dict[str, Scalar] = {"algorithm": "fedsgd", "batch_size": 0}


@pytest.mark.parametrize("names", [("size", "steps"), ("steps", "size")])
@pytest.mark.parametrize(
    "given",
    [{"algorithm": "fedpa"}, FULL_BATCH, {"algorithm": "scaffold", "scaffold.option": "I"}],
    ids=["fedpa", "fedsgd", "scaffold"],
)
def test_a_parameter_may_have_the_name_of_a_number_that_an_algorithm_counts(
    given: dict[str, Scalar], names: tuple[str, str], tmp_path: Path
) -> None:
    ends = []
    for first, second in (names, ("gain", "offset")):
        text = NAMED.format(first=first, second=second)
        folder = tmp_path / first
        folder.mkdir()
        theta = model(run(folder / "run", **given, **own(folder, text)))
        ends.append([theta[name] for name in (first, second, "head.weight")])
    assert all(map(torch.equal, *ends))
    assert ends[0][0] != 1


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (FIXED, {}),
        (WIRED, {}),
        (UNUSED, {}),
        (TIED, {}),
        (FROZEN, {}),
        (FROZEN, BY_CLIENTS),
        (PRETRAINED, {"algorithm": "fednova"}),
        (RECURRENT, FULL_BATCH),
        (RECURRENT, {"algorithm": "fedntd"}),
    ],
    ids=[
        "random buffer",
        "random wiring",
        "unused layer",
        "tied",
        "frozen",
        "frozen, own norm",
        "frozen statistics",
        "one gradient",
        "at theta",
    ],
)
def test_both_trainers_train_a_network_alike(
    text: str, given: dict[str, Scalar], tmp_path: Path
) -> None:
    given = {**own(tmp_path, text), **given}
    batched: dict[str, Scalar] = {"trainer": "batched", "program": "record", "clients_together": 3}
    one = model(run(tmp_path / "one", trainer="sequential", **given))
    other = model(run(tmp_path / "other", **batched, **given))
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(other[name], one[name], atol=1e-5, rtol=1e-4)


def test_frozen_parameters_are_neither_trained_nor_sent(tmp_path: Path) -> None:
    """Weight decay and redrawn weights leave them alone too, and the exported model has them."""
    settings = own(tmp_path, FROZEN)
    folder = run(tmp_path / "run", weight_decay=0.1, initial_weights="he", **settings)
    assert model(folder).keys() == {"norm.weight", "head.weight", "head.bias"}
    trained = load_model(folder)
    export(trained, tmp_path / "exported", onnx=False)
    weights = load_file(tmp_path / "exported" / "weights.safetensors")
    config = read_config(settings)
    initial = make_module(config, trained.task).state_dict()
    frozen = {"body.weight", "body.bias", "norm.bias"}
    assert weights.keys() == initial.keys() == model(folder).keys() | frozen
    for name in frozen:
        assert torch.equal(weights[name], initial[name])
    assert not torch.equal(weights["head.weight"], initial["head.weight"])


def test_statistics_of_layers_in_evaluation_mode_stay_as_they_are(tmp_path: Path) -> None:
    settings = own(tmp_path, PRETRAINED)
    folder = run(tmp_path / "run", **settings)
    assert model(folder).keys() == {"head.weight", "head.bias"}
    trained = load_model(folder)
    initial = make_module(read_config(settings), trained.task)
    mean = "body.1.running_mean"
    assert torch.equal(trained.module.get_buffer(mean), initial.get_buffer(mean))
    assert metrics(folder)[-1]["test_accuracy"] > metrics(folder)[0]["test_accuracy"] + 0.1


def test_a_network_with_tied_weights_is_exported(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", num_server_rounds=1, **own(tmp_path, TIED))
    export(load_model(folder), tmp_path / "exported", onnx=False)
    weights = load_file(tmp_path / "exported" / "weights.safetensors")
    assert torch.equal(weights["one.weight"], weights["two.weight"])


@pytest.mark.parametrize(
    ("first", "inputs", "said"),
    [
        (
            "nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))",
            "self.first(x.flatten(1))",
            r"changes its buffer first\.parametrizations\.weight\.0\._u, which is no parameter",
        ),
        (
            "None",
            "x.flatten(1) if not self.training else x",
            "Network raises .* for two examples in training mode, and not in evaluation mode",
        ),
    ],
)
def test_what_a_pass_in_training_mode_does_is_refused_before_a_run(
    first: str, inputs: str, said: str, tmp_path: Path
) -> None:
    settings = own(tmp_path, EVALUATED.format(first=first, inputs=inputs))
    with pytest.raises(ConfigError, match=said):
        run(tmp_path / "run", **settings)


NO_TENSOR = """
from typing import ClassVar
from torch import nn
from fedapp.models.model import Model

class Outputs(nn.Linear):
    def forward(self, x):
        return {"logits": super().forward(x.flatten(1))}

class Own(Model):
    name: ClassVar[str] = "own"

    def build(self, task):
        return Outputs(64, 10)

    def loss(self, outputs, targets, mask=None):
        return super().loss(outputs["logits"], targets, mask)
"""


def test_outputs_that_are_no_tensor_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Own returns a dict, which is no tensor"):
        run(tmp_path / "run", **own(tmp_path, NO_TENSOR))


EMBEDDED = """
from torch import nn

class Words(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.embedding, self.head = nn.Embedding(258, 4), nn.Linear(4, num_classes)

    def forward(self, symbols):
        return self.head(self.embedding(symbols).mean(1))
"""


@pytest.mark.parametrize("trainer", ["sequential", "batched"])
def test_a_network_gets_symbols_that_pytorchs_embedding_takes(tmp_path: Path, trainer: str) -> None:
    """They are stored as 16-bit integers."""
    for split in ("train", "test"):
        lines = "".join(
            f"{word} {i},{len(word) - 3}\n" for i in range(20) for word in ("good", "bad")
        )
        (tmp_path / "set").mkdir(exist_ok=True)
        (tmp_path / "set" / f"{split}.csv").write_text("text,label\n" + lines)
    data = str(tmp_path / "set")
    text: dict[str, Scalar] = {"dataset": data, "text_unroll": 12, "program": "record"}
    if trainer == "sequential":
        del text["program"]
    folder = run(tmp_path / "run", trainer=trainer, **text, **own(tmp_path, EMBEDDED))
    assert metrics(folder)[-1]["test_loss"] < metrics(folder)[0]["test_loss"]


def test_a_frozen_parameter_may_have_two_names(tmp_path: Path) -> None:
    twice = FROZEN.replace(
        "self.body.req", "self.norm.again = self.norm.bias\n        self.body.req"
    )
    assert model(run(tmp_path / "run", **own(tmp_path, twice))).keys() == {
        "norm.weight",
        "head.weight",
        "head.bias",
    }


def test_a_network_without_parameters_is_refused(tmp_path: Path) -> None:
    settings = own(tmp_path, FROZEN.replace("self.body.requires", "self.requires"))
    with pytest.raises(ConfigError, match="Tuned has no parameters that require gradients"):
        run(tmp_path / "run", **settings)


@pytest.mark.parametrize(
    "inputs",
    [
        "nn.functional.dropout(x.flatten(1), 0.5, self.training)",
        "x.flatten(1) - x.flatten(1).mean(0) if self.training else x.flatten(1)",
    ],
    ids=["draws", "mixes"],
)
def test_networks_that_draw_or_mix_without_a_layer_train_one_by_one(
    tmp_path: Path, inputs: str
) -> None:
    settings = own(tmp_path, EVALUATED.format(first="None", inputs=inputs))
    with pytest.raises(ConfigError, match=r"trainer = 'batched'.*has a Network, which draws"):
        run(tmp_path / "run", trainer="batched", **settings)


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
