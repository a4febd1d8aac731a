"""The examples of CONTRIBUTING.md, and Python in two pages of the docs, run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from fedapp.cli.generate import config_table, configuration_page
from fedapp.config.read import read_config
from fedapp.data.load import load_dataset, load_partition
from fedapp.data.transforms.transform import Transform
from fedapp.errors import ConfigError
from fedapp.studies.sweep.identity import data_name
from fedapp.training.algorithm import Batch, ClientContext, algorithm_of
from fedapp.training.build import make_module
from tests.conftest import Component, Run
from tests.identities import Identity
from tests.in_process import metrics, model
from tests.own_app import app_in, write

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
Adopt = Callable[[str, str], None]


def block(pattern: str) -> str:
    """Return the code block that contains ``pattern``."""
    blocks = re.findall(r"```(?:python|diff)\n(.*?)```", TEXT, re.DOTALL)
    (found,) = [code for code in blocks if pattern in code]
    return str(found)


@pytest.fixture
def adopt(component: Component) -> Adopt:
    """Put an example's code into a package as one more file, for one test."""
    return lambda package, module: component(
        package, module, block(f'name: ClassVar[str] = "{module}"')
    )


def test_partitioner(adopt: Adopt) -> None:
    adopt("fedapp.data.partition", "slices")
    config = read_config({"partitioner": "slices", "slices.keep": 0.5, "num-clients": 100})
    dataset = load_dataset(config)
    partition = load_partition(config, dataset, 100)
    # 1,440 digits over 100 clients: 40 slices of 15 and 60 of 14, and both keep 7.
    assert partition.sizes.tolist() == [7] * 100
    assert partition.client(1).tolist() == list(range(15, 22))
    assert partition.test is not None
    # 357 test digits: 57 slices of 4, which keep 2, and 43 of 3, which keep 1.
    assert partition.test.sizes.tolist() == [2] * 57 + [1] * 43
    assert "slices.keep = 1.0  # Share of its slice that a client keeps." in config_table()
    assert "Contiguous slices, in the order of the data." in configuration_page()
    with pytest.raises(ConfigError, match=r"slices\.keep = 0"):
        read_config({"partitioner": "slices", "slices.keep": 0})


def test_model(adopt: Adopt) -> None:
    adopt("fedapp.models", "narrow")
    config = read_config({"model": "narrow", "narrow.width": 3})
    module = make_module(config, load_dataset(config).task)
    # 64 pixels to 3 units to 10 classes, with biases.
    assert sum(p.numel() for p in module.parameters()) == 65 * 3 + 4 * 10


def test_a_models_metrics() -> None:
    body = block("expected calibration error")
    namespace: dict[str, Any] = {"torch": torch, "Tensor": torch.Tensor}
    exec("class Own:\n" + body, namespace)
    # Three examples of confidence 0.9, two of them right, and one of 0.6, wrong: by hand,
    # (|2 - 2.7| + |0 - 0.6|) / 4.
    outputs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.6, 0.4]]).log()
    found = namespace["Own"]().metrics(outputs, torch.tensor([0, 0, 0, 1]))
    assert found == {"ece": pytest.approx((0.7 + 0.6) / 4)}


def test_transform(adopt: Adopt) -> None:
    adopt("fedapp.data.transforms", "negative")
    transform = cast("Transform", read_config({"transform": "negative"}).component("transform"))
    inputs = torch.tensor([[0, 255]], dtype=torch.uint8)
    assert transform.test(inputs, torch.float32).tolist() == [[1, 0]]


def test_sampler(adopt: Adopt, run: Run) -> None:
    adopt("fedapp.federation.samplers", "cycle")
    folder = run(sampler="cycle", num_clients=5, fraction_train=0.4)
    assert [r["clients"] for r in metrics(folder)[1:]] == [[0, 1], [2, 3], [0, 4]]


def test_data_set(adopt: Adopt, tmp_path: Path) -> None:
    adopt("fedapp.data.embedded", "flowers")
    table = tmp_path / "table.csv"
    table.write_text("a,b,kind\n" + "".join(f"{i},{-i * i},{i % 3}\n" for i in range(20)))
    data = load_dataset(read_config({"dataset": "flowers", "flowers.path": str(table)}))
    assert (len(data.train), len(data.test), data.task.num_classes) == (16, 4, 3)
    assert data.train.targets[:4].tolist() == [1, 2, 0, 1]
    assert abs(data.train.inputs.mean()) < 1e-6
    assert data_name(read_config({"dataset": "digits"})) == "digits"
    names = []
    for name in ("table.csv", "other.csv"):
        (tmp_path / name).write_text(table.read_text().replace("19,", "20,", name == "other.csv"))
        config = read_config({"dataset": "flowers", "flowers.path": str(tmp_path / name)})
        names.append(data_name(config))
    assert names[0].startswith("flowers@")
    assert names[0] != names[1]
    module = make_module(read_config({"model": "2nn", "2nn.hidden": 1}), data.task)
    # 2 numbers to 1 unit to 1 unit to 3 classes, with biases.
    assert sum(p.numel() for p in module.parameters()) == 3 + 2 + 6


RECIPES = {
    "slices": {"partitioner": "./slices.py", "slices.keep": 0.5},
    "narrow": {"model": "./narrow.py", "narrow.width": 3},
    "negative": {"transform": "./negative.py"},
    "cycle": {"sampler": "./cycle.py"},
    "flowers": {"dataset": "./flowers.py"},
    "signs": {"algorithm": "./signs.py", "signs.scale": 0.1},
    "halfway": {"algorithm": "./halfway.py", "halfway.own": 0.2},
    "norms": {"callbacks": "./norms.py", "norms.every": 2},
}
"""The settings with which each example runs from a folder of one's own."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_from_ones_own_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {f"{name}.py": block(f'name: ClassVar[str] = "{name}"')})
    write(tmp_path, {"flowers.csv": "a,kind\n" + "".join(f"{i},{i % 3}\n" for i in range(60))})
    with app_in(tmp_path):
        folder = run(num_server_rounds=1, **RECIPES[name])
    (copy,) = (folder / "components").rglob("*.py")
    assert copy.read_text() == (tmp_path / f"{name}.py").read_text()


@pytest.mark.slow
def test_python_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for page in ("quickstart", "run-directory"):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(code, found)
    assert found["history"]["round"].tolist() == list(range(9))
    right = (found["predicted"] == found["data"].test.targets).mean()
    assert right == pytest.approx(found["history"]["test_accuracy"].iloc[-1])


def test_algorithm(adopt: Adopt) -> None:
    adopt("strategies", "signs")
    algorithm = algorithm_of(read_config({"algorithm": "signs", "signs.scale": 0.5}))
    params = {"w": torch.tensor([3.0, -2.0, 0.0])}
    batch = Batch(torch.empty(0), torch.empty(0))
    direction, loss = algorithm.gradient(
        lambda at, _: (dict(at), torch.tensor(1.0)),
        params,
        batch,
        ClientContext(global_params=params),
    )
    assert direction["w"].tolist() == [0.5, -0.5, 0.0]
    assert loss == 1


def test_algorithm_with_client_state(adopt: Adopt, run: Run) -> None:
    adopt("strategies", "halfway")
    table = eval(f"{{{block('Identity(')}}}", {"Identity": Identity})
    assert table == {"halfway": Identity({"halfway.own": 0.0})}
    algorithm = algorithm_of(read_config({"algorithm": "halfway", "halfway.own": 0.25}))
    context = ClientContext({"w": torch.tensor([4.0])}, state={"w": torch.tensor([8.0])})
    assert algorithm.initial_params(context)["w"].tolist() == [5.0]
    assert algorithm.initial_client_state(context)["w"].tolist() == [4.0]
    models = {}
    for own in (0.0, 0.5):
        for trainer in ("sequential", "batched"):
            settings = {"halfway.own": own, "trainer": trainer, "fraction-train": 1.0}
            settings |= {"program": "record"} if trainer == "batched" else {}
            folder = run(f"{own}-{trainer}", algorithm="halfway", **settings)
            models[own, trainer] = model(folder)
    fedavg = model(run("fedavg", trainer="sequential", fraction_train=1.0))
    for name, tensor in fedavg.items():
        torch.testing.assert_close(models[0.0, "sequential"][name], tensor)
        assert not torch.allclose(models[0.5, "sequential"][name], tensor)
        for own in (0.0, 0.5):
            torch.testing.assert_close(
                models[own, "batched"][name], models[own, "sequential"][name]
            )


def test_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"norms.py": block("class NormLog")})
    with app_in(tmp_path):
        folder = run(
            callbacks="./norms.py", num_server_rounds=4, eval_every=4, **{"norms.every": 2}
        )
    lines = [line.split(",") for line in (folder / "norms.csv").read_text().splitlines()]
    assert [line[0] for line in lines] == ["0", "2", "4"]
    scores = [str(record.get("test_accuracy", "")) for record in metrics(folder)]
    assert [line[2] for line in lines] == [scores[0], "", scores[4]]
    norm = torch.cat([tensor.flatten() for tensor in model(folder).values()]).double().norm()
    assert float(lines[-1][1]) == pytest.approx(float(norm))


@pytest.mark.process
def test_key(tmp_path: Path) -> None:
    for name in ("fedapp", "strategies"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "docs").mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    patch = tmp_path / "key.diff"
    patch.write_text(block("warmup_rounds"))
    subprocess.run(["git", "apply", patch.name], cwd=tmp_path, check=True)
    code = (
        "from fedapp.cli.generate import main; main([])\n"
        "from fedapp.config.read import read_config\n"
        "from fedapp.training.round_plan import RoundPlan\n"
        "config = read_config({'warmup-rounds': 3, 'learning-rate': 0.4})\n"
        "print([round(RoundPlan.of(config, t).learning_rate, 6) for t in (1, 2, 4, 5)])"
    )
    run = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        run, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[0.1, 0.2, 0.4, 0.4]", done.stderr
    table = (tmp_path / "pyproject.toml").read_text()
    assert "warmup-rounds = 0  # Rounds over which eta grows to its value." in table
    assert "`warmup-rounds`" in (tmp_path / "docs" / "configuration.md").read_text()
