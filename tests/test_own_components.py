"""Components that users write: what is taken care of for them, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedapp.config.read import read_config
from fedapp.data.load import load_dataset, load_partition
from fedapp.data.node_data import read_node_data
from fedapp.errors import ConfigError
from fedapp.runs.directory import read_stored
from fedapp.training import build as setup
from fedapp.training.build import make_evaluator, make_module, make_trainer
from fedapp.training.sequential import SequentialTrainer
from tests.conftest import Component, Run
from tests.in_process import metrics, model
from tests.test_callbacks import scalars

MODEL = """
from typing import ClassVar
from torch import nn
from fedapp.models.model import Model

class Own(Model):
    \"\"\"A network of a user's own.\"\"\"

    name: ClassVar[str] = "own"

    def build(self, task):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), {layer}, nn.ReLU(), nn.Linear(8, 10))
"""
METRICS = """
    def metrics(self, outputs, targets):
        hit = outputs.argmax(1) == targets
        return {"class_0_accuracy": float(hit[targets == 0].double().mean()), "all": len(targets)}
"""
NUMBERS = """
    def {method}(self, *given):
        import numpy, torch
        return {numbers}
"""
ALGORITHM = """
from typing import ClassVar
from fedapp.training.algorithm import Algorithm, ClientExtras
from fedapp.training.tensors import add

class Own(Algorithm):
    \"\"\"Federated averaging whose clients send Delta_k as an update of their own.\"\"\"

    name: ClassVar[str] = "own"
    custom_update: ClassVar[bool] = True

    def finalize(self, params, context, steps):
        return ClientExtras(update=add(params, context.global_params, -1.0))
"""


UPLOADS = """
from typing import ClassVar
from fedapp.training.algorithm import Algorithm, ClientExtras

class Own(Algorithm):
    \"\"\"Federated averaging whose clients send what their last step was.\"\"\"

    name: ClassVar[str] = "own"

    def step_state(self, params, direction, context):
        return {"last": next(iter(direction.values()))}

    def finalize(self, params, context, steps):
        return ClientExtras(upload={"last": context.step_state["last"]})
"""


PARTITIONER = """
from typing import ClassVar
import numpy as np
from fedapp.data.dataset import Partition, from_index_sets
from fedapp.data.partition.partitioning import Partitioning

class Own(Partitioning):
    \"\"\"A scheme of a user's own.\"\"\"

    name: ClassVar[str] = "own"

    def split(self, examples, num_clients, seed):
        n, k = len(examples), num_clients
        return {sets}

    def split_test(self, test, train, partition, seed):
        n, k = len(test), partition.num_clients
        return {test}
"""
EVERY_KTH = "from_index_sets([np.arange(i, n, k) for i in range(k)])"


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            "from_index_sets([np.arange(n) % k == i for i in range(k)])",
            r"client 0 has a mask of 1440 booleans, .*Give np\.flatnonzero\(mask\)\.$",
        ),
        (
            "from_index_sets([[0], [0.5, 1.0], [2], [3]])",
            r"client 1 has index 0\.5, and indices are whole numbers\. .* x\.astype\(int\)\.$",
        ),
        ("from_index_sets([[0], [1], {2, 3}, [4]])", r"client 2 has a set .* sorted\(s\)\.$"),
        ("from_index_sets([[0], [1], [[2], [3, 4]], [5]])", "client 2 has a list that is no list"),
        (
            "from_index_sets([[0], [1], [2], [3, -1]])",
            "client 3 has index -1, and the 1440 examples have indices from 0 to 1439",
        ),
        ("from_index_sets([[], [], [5, 1440], [3]])", "client 2 has index 1440, and the 1440"),
        (
            "from_index_sets(np.array_split(np.arange(n), k - 1))",
            "returns index sets of 3 clients, and there are 4. Return one for each",
        ),
        ("[np.arange(i, n, k) for i in range(k)]", "returns a list and no Partition"),
        ("Partition(np.arange(n) / 1.0, np.arange(5) * 360)", "its indices are float64"),
        (
            "Partition(np.arange(n), np.arange(5) * 300)",
            r"its offsets must rise from 0 to 1440, .* \[0, 300, 600, 900, 1200\]",
        ),
    ],
)
def test_what_a_partitioner_of_ones_own_returns_are_index_sets(
    component: Component, sets: str, said: str
) -> None:
    component("fedapp.data.partition", "own", PARTITIONER.format(sets=sets, test="None"))
    config = read_config({"partitioner": "own", "num-clients": 4})
    with pytest.raises(ConfigError, match=rf"^partitioner = 'own', split: .*{said}"):
        load_partition(config, load_dataset(config), 4)


def test_so_are_its_test_sets(component: Component) -> None:
    code = PARTITIONER.format(sets=EVERY_KTH, test="from_index_sets([[0]] * (k - 1) + [[n]])")
    component("fedapp.data.partition", "own", code)
    config = read_config({"partitioner": "own", "num-clients": 4})
    said = "^partitioner = 'own', split_test: client 3 has index 357, .* from 0 to 356"
    with pytest.raises(ConfigError, match=said):
        load_partition(config, load_dataset(config), 4)


def test_clients_of_a_partitioner_of_ones_own_may_share_examples(
    component: Component, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Six clients with the first 100 examples each leave out 1,340 of 1,440."""
    shared = "from_index_sets([np.arange(100)] * k)"
    component("fedapp.data.partition", "own", PARTITIONER.format(sets=shared, test="None"))
    folder = run("run", partitioner="own")
    written = json.loads((folder / "partition.json").read_text())
    assert written["left_out"] == {"clients": 0, "examples": 1340, "test_examples": 0}
    assert written["num_examples"] == 600
    assert "leaves out 1,340 of the 1,440 training examples" in caplog.text


def test_an_upload_that_needs_a_step_is_refused_before_clients_train(
    component: Component, run: Run
) -> None:
    component("strategies", "own", UPLOADS)
    with pytest.raises(ConfigError, match=r"algorithm = 'own': finalize raises KeyError\('last'\)"):
        run(algorithm="own")


def test_what_a_network_draws_comes_from_the_seed(component: Component, run: Run) -> None:
    component("fedapp.models", "own", MODEL.format(layer="nn.Dropout(0.5)"))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = run("one", model="own", trainer="auto")
    assert torch.equal(torch.get_rng_state(), before)
    two = run("two", nodes=2, model="own")
    # Two nodes: the same up to how float64 adds.
    for name, tensor in model(one).items():
        assert torch.allclose(tensor, model(two)[name], rtol=0, atol=1e-12)
    assert metrics(run("other", model="own", seed=1)) != metrics(one)


@pytest.mark.parametrize(
    "layer", ["nn.Dropout(0.5)", "nn.BatchNorm1d(8, track_running_stats=False)"]
)
def test_clients_with_draws_or_batches_of_their_own_train_one_by_one(
    component: Component, monkeypatch: pytest.MonkeyPatch, layer: str
) -> None:
    component("fedapp.models", "own", MODEL.format(layer=layer))
    config = read_config({"model": "own"})
    task = load_dataset(config).task
    monkeypatch.setattr(setup, "is_batched", lambda config: True)  # as trainer='auto' on a GPU
    assert isinstance(make_trainer(config, task), SequentialTrainer)
    kind = layer.removeprefix("nn.").partition("(")[0]
    with pytest.raises(ConfigError, match=rf"trainer = 'batched'.*has a {kind}.*'sequential'"):
        make_trainer(read_config({"model": "own", "trainer": "batched"}), task)


def test_moon_without_a_representation_is_refused_before_a_run_begins(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"algorithm = 'moon'.* model = 'linear' has none"):
        run(algorithm="moon", model="linear", pictures=False)
    task = read_node_data(read_config({"model": "2nn"}), None).dataset.task
    assert make_module(read_config({"algorithm": "moon", "model": "2nn"}), task)
    assert make_module(read_config({"algorithm": "fedavg", "model": "linear"}), task)


def test_running_statistics_are_refused_before_a_run_begins(component: Component, run: Run) -> None:
    component("fedapp.models", "own", MODEL.format(layer="nn.BatchNorm1d(8)"))
    said = r"model = 'own'.*BatchNorm1d.*'fedavg' nobody.*algorithm='fedbn'.*nn\.GroupNorm"
    with pytest.raises(ConfigError, match=said):
        run("refused", model="own")
    config = read_config({"model": "2nn"})
    assert make_module(config, load_dataset(config).task)


def test_metrics_of_a_users_own_stand_in_the_record(component: Component, run: Run) -> None:
    component("fedapp.models", "own", MODEL.format(layer="nn.Identity()") + METRICS)
    records = metrics(run("measured", model="own", eval_train_examples=20))
    assert [record["test_all"] for record in records] == [357] * 4
    assert all(0 <= record["test_class_0_accuracy"] <= 1 for record in records)
    assert records[-1]["training_set_all"] == 20
    tested = {"model": "own", "evaluation": "clients", "nodes": 2}
    folder = run("by clients", **tested)
    last, node_data = metrics(folder)[-1], read_node_data(read_stored(folder)[0], None)
    sizes = [len(node_data.test(client)) for client in range(6)]
    assert last["client_all"] == pytest.approx(sum(n * n for n in sizes) / sum(sizes))
    assert last["test_all"] == last["client_all"]
    assert "test_clients" not in last


def put(component: Component, method: str, numbers: str) -> dict[str, str]:
    """Make a model or an algorithm that returns these as numbers of its own; return its key."""
    code = NUMBERS.format(method=method, numbers=numbers)
    if method == "metrics":
        component("fedapp.models", "own", MODEL.format(layer="nn.Identity()") + code)
        return {"model": "own"}
    component("strategies", "own", ALGORITHM + code)
    return {"algorithm": "own"}


@pytest.mark.parametrize(("method", "prefix"), [("metrics", "test_"), ("report", "")])
def test_numbers_of_a_users_own_may_be_arrays_of_one_number(
    method: str, prefix: str, component: Component, run: Run
) -> None:
    numbers = '{"a": torch.tensor(0.5), "b": numpy.float32(0.5), "c": numpy.float64(0.5)}'
    folder = run(**put(component, method, numbers))
    for name in ("a", "b", "c"):
        found = scalars(folder, f"{prefix}{name}")
        assert [record.get(f"{prefix}{name}") for record in metrics(folder)[1:]] == [0.5] * 3
        assert [(round_, value) for round_, value in found if round_] == [
            (round_, 0.5) for round_ in (1, 2, 3)
        ]


@pytest.mark.parametrize(("method", "where"), [("metrics", "model"), ("report", "algorithm")])
@pytest.mark.parametrize("value", ["[0.5]", "None", "torch.ones(2)"])
def test_what_is_no_number_is_refused_by_its_name(
    method: str, where: str, value: str, component: Component, run: Run, tmp_path: Path
) -> None:
    """Of a model before training; what an algorithm reports is known after the first round."""
    said = rf"{where} = 'own': {method} returns .* for 'mean', which is no number\. Let it return"
    with pytest.raises(ConfigError, match=said):
        run(**put(component, method, f'{{"mean": {value}}}'))
    assert (tmp_path / "run" / "metrics.jsonl").exists() == (method == "report")


def test_clients_are_tested_with_what_they_keep(component: Component, run: Run) -> None:
    component("fedapp.models", "own", MODEL.format(layer="nn.LayerNorm(8)"))
    same = {"model": "own", "algorithm": "fedbn", "partitioner": "dirichlet"}
    same |= {"evaluation": "clients"}
    one = run("one", **same)
    config, _ = read_stored(one)
    node_data = read_node_data(config, None)
    evaluator = make_evaluator(config, node_data.dataset.task, node_data.dataset.test)
    right = 0.0
    for client in range(6):
        kept = max((one / "client-states" / str(client)).glob("*.safetensors"), default=None)
        params = {**model(one), **(load_file(kept) if kept else {})}
        score = evaluator.with_examples(node_data.test(client)).score(params)
        right += score.accuracy * score.count
    last = metrics(one)[-1]
    assert last["client_accuracy"] == pytest.approx(right / 357)
    assert last["client_loss"] != pytest.approx(evaluator.score(model(one)).loss, rel=1e-3)
    two = metrics(run("two", nodes=2, **same))[-1]
    assert two["client_accuracy"] == pytest.approx(last["client_accuracy"])
    plain = metrics(run("plain", **{**same, "algorithm": "fedavg", "evaluation": "both"}))[-1]
    assert plain["client_accuracy"] == pytest.approx(plain["test_accuracy"])


def test_who_keeps_what_cannot_be_read_is_left_out_of_an_evaluation_alone(
    component: Component, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The others of its node's cohort are tested."""
    component("fedapp.models", "own", MODEL.format(layer="nn.LayerNorm(8)"))
    same = {"model": "own", "algorithm": "fedbn", "evaluation": "clients", "fraction_train": 1.0}
    folder = run("run", checkpoint_every=1, **same)
    kept = folder / "client-states" / "2"
    for path in kept.iterdir():
        path.write_bytes(b"nonsense")
    run("run", resume=True, num_server_rounds=4, checkpoint_every=1, **same)
    (said,) = [r.getMessage() for r in caplog.records if "of this evaluation" in r.getMessage()]
    assert "clients [2] are left out" in said
    assert str(kept) in said
    assert [record["client_clients"] for record in metrics(folder)] == [6, 6, 6, 6, 5]


def test_a_run_says_of_which_commit_it_is(run: Run) -> None:
    versions = json.loads((run("versions") / "config.json").read_text())["versions"]
    root = Path(__file__).resolve().parent.parent
    if (root / ".git").exists() and shutil.which("git"):
        head = ["git", "-C", str(root), "rev-parse", "HEAD"]
        done = subprocess.run(head, capture_output=True, text=True, check=True)
        assert versions["commit"].removesuffix("-dirty") == done.stdout.strip()
    else:
        assert "commit" not in versions


def test_an_update_of_ones_own_is_none_of_the_options(component: Component, run: Run) -> None:
    component("strategies", "own", ALGORITHM)
    own, plain = model(run("own", algorithm="own")), model(run("fedavg"))
    for name, tensor in plain.items():
        assert torch.equal(tensor, own[name])
    with pytest.raises(
        ConfigError, match="update = 'model': has no effect, because the clients of"
    ):
        run("two", algorithm="own", update="model")
