"""Sharpness: of quadratics with known eigenvalues, of tiny networks by their whole Hessian, of runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call
from typer.testing import CliRunner

from fedapp.analysis.loss_landscape import (
    Terms,
    direction,
    flatten,
    hessian_product,
    largest_eigenvalue,
    power_iteration,
    rise,
    unflatten,
    value_at,
)
from fedapp.cli.main import app as cli
from fedapp.data.embedded.quadratic import MATRIX, SMOOTHNESS, STRONG_CONVEXITY, VECTOR
from fedapp.data.load import load_dataset
from fedapp.errors import CheckpointError, ConfigError
from fedapp.runs.directory import read_stored
from fedapp.runs.model_sharpness import Measurement, TrainingLoss, sharpness_of
from fedapp.seeds import generator
from fedapp.training.build import make_evaluator
from tests.conftest import Run
from tests.data_files import write_parquet
from tests.in_process import model


def quadratic(matrix: Tensor) -> Terms:
    """Return x'Ax / 2 - sum(x) of x = (a, b), a [2] and b [d - 2, 1], in two terms."""

    def terms(params: Mapping[str, Tensor]) -> Iterator[Tensor]:
        x = torch.cat([params["a"], params["b"].reshape(-1)])
        yield x @ matrix @ x / 2
        yield -x.sum()

    return terms


def point(*values: float) -> dict[str, Tensor]:
    x = torch.tensor(values, dtype=torch.float64)
    return {"a": x[:2], "b": x[2:].reshape(-1, 1)}


def rotated(*eigenvalues: float) -> Tensor:
    """Return a symmetric matrix with these eigenvalues, in no axis's direction."""
    drawn = np.random.default_rng(1).standard_normal((len(eigenvalues), len(eigenvalues)))
    q = torch.from_numpy(np.linalg.qr(drawn)[0])
    return q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ q.T


START = torch.ones(4, dtype=torch.float64)


def test_vectors_have_the_numbers_in_the_order_of_the_names() -> None:
    theta = point(1, 2, 3, 4)
    vector = flatten(theta.values())
    assert vector.tolist() == [1, 2, 3, 4]
    assert {name: part.tolist() for name, part in unflatten(vector, theta).items()} == {
        "a": [1, 2],
        "b": [[3], [4]],
    }


def test_the_product_with_a_quadratics_hessian_is_that_with_its_matrix() -> None:
    matrix = rotated(1, 2, 3, 4)
    product = hessian_product(quadratic(matrix), point(5, -1, 2, 0))
    vector = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    assert product(vector) == pytest.approx(matrix @ vector)


@pytest.mark.parametrize(
    ("eigenvalues", "largest", "greatest"),
    [
        ((3.0, 1.0, 0.5, 0.0), 3.0, 3.0),
        ((3.0, 1.0, -2.0, 0.0), 3.0, 3.0),
        ((2.0, 1.0, -5.0, 0.0), 2.0, -5.0),
        ((-1.0, -2.0, -5.0, -3.0), -1.0, -5.0),
        ((2.0, -2.0, 1.0, 0.0), 2.0, None),
        ((4.0, 4.0, 4.0, 4.0), 4.0, 4.0),
        ((0.0, 0.0, 0.0, 0.0), 0.0, 0.0),
    ],
)
def test_the_largest_eigenvalue_of_a_quadratic(eigenvalues, largest: float, greatest) -> None:
    matrix = rotated(*eigenvalues)
    product = hessian_product(quadratic(matrix), point(0, 0, 0, 0))
    found = largest_eigenvalue(product, START, tolerance=1e-7, most=1000)
    assert found.value == pytest.approx(largest, abs=1e-6)
    assert float(found.vector.norm()) == pytest.approx(1)
    assert float((matrix @ found.vector - found.value * found.vector).norm()) < 1e-5
    if greatest is not None:
        assert power_iteration(product, START, 1e-7, 1000).value == pytest.approx(greatest)


def test_a_small_largest_eigenvalue_is_found_beside_a_very_negative_one() -> None:
    """The error is held to the eigenvalue, and not to what it is after the shift."""
    eigenvalues = torch.tensor([-5.0, 0.5, *[0.0] * 500], dtype=torch.float64)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal(502))
    found = largest_eigenvalue(lambda v: eigenvalues * v, start)
    assert found.value == pytest.approx(0.5, rel=0.01)
    assert found.error <= 0.01 * found.value


@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=2),
    st.lists(st.floats(-5, 5), min_size=2, max_size=2),
    st.floats(0, 1),
)
def test_the_notes_quadratic_is_strongly_convex_and_smooth(x, y, share: float) -> None:
    """By the definitions, with m and M the extreme eigenvalues of A; equal for its eigenvectors."""

    def f(point: np.ndarray) -> float:
        return float(point @ MATRIX @ point / 2 - VECTOR @ point)

    x, y = np.array(x), np.array(y)
    distance = float(np.linalg.norm(x - y))
    chord = share * f(x) + (1 - share) * f(y) - f(share * x + (1 - share) * y)
    work = share * (1 - share) / 2 * distance**2
    assert STRONG_CONVEXITY * work - 1e-9 <= chord <= SMOOTHNESS * work + 1e-9
    change = float(np.linalg.norm(MATRIX @ (x - y)))
    assert STRONG_CONVEXITY * distance - 1e-9 <= change <= SMOOTHNESS * distance + 1e-9
    values, vectors = np.linalg.eigh(MATRIX)
    assert values == pytest.approx([STRONG_CONVEXITY, SMOOTHNESS])
    for value, vector in zip(values, vectors.T, strict=True):
        assert np.linalg.norm(MATRIX @ vector) == pytest.approx(value)


def test_the_error_says_how_near_an_eigenvalue_is() -> None:
    matrix = rotated(3.0, 2.9, 1.0, 0.0)
    found = power_iteration(lambda v: matrix @ v, START, tolerance=0.0, most=3)
    assert found.products == 3
    assert min(abs(found.value - e) for e in (3.0, 2.9, 1.0, 0.0)) <= found.error
    loose = power_iteration(lambda v: matrix @ v, START, tolerance=0.5)
    assert loose.error <= 0.5 * loose.value
    assert loose.products < power_iteration(lambda v: matrix @ v, START, 1e-3).products


def test_what_is_not_finite_ends_at_once() -> None:
    found = largest_eigenvalue(lambda v: v * torch.nan, START)
    assert (np.isnan(found.value), found.products) == (True, 1)


def test_the_rise_on_a_quadratic_is_by_hand() -> None:
    """From the minimum of (x1^2 + 2 x2^2 + 3 x3^2 + 4 x4^2) / 2 - sum(x), 0.1 along each axis."""
    terms = quadratic(torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)))
    theta = point(1, 1 / 2, 1 / 3, 1 / 4)
    assert value_at(terms, theta) == pytest.approx(-(1 + 1 / 2 + 1 / 3 + 1 / 4) / 2)
    for axis in range(4):
        step = 0.1 * torch.eye(4, dtype=torch.float64)[axis]
        assert rise(terms, theta, step) == pytest.approx((axis + 1) * 0.01 / 2)


def test_the_mean_rise_of_random_directions_is_the_mean_curvature() -> None:
    """|step|^2 tr(H) / (2 d) = 4 (1 + 2 + 3 + 4) / (2 4)."""
    terms = quadratic(rotated(1, 2, 3, 4))
    theta = unflatten(torch.linalg.solve(rotated(1, 2, 3, 4), START), point(0, 0, 0, 0))
    drawn = [direction(theta, generator(0, "sharpness", n)) for n in range(2000)]
    assert all(float(each.norm()) == pytest.approx(1) for each in drawn[:10])
    assert not torch.equal(drawn[0], drawn[1])
    mean = np.mean([rise(terms, theta, 2 * each) for each in drawn])
    assert mean == pytest.approx(5.0, rel=0.02)


class Net(nn.Module):
    """A tiny convolutional network: 3x3 images to 2 classes, 22 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 2)
        self.fc = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))  # type: ignore[no-any-return]


def test_a_networks_largest_eigenvalue_is_that_of_its_whole_hessian() -> None:
    torch.manual_seed(0)
    net = Net().double()
    inputs, targets = torch.rand(12, 1, 3, 3).double(), torch.arange(12) % 4
    theta = {name: tensor.detach() for name, tensor in net.named_parameters()}

    def terms(params: Mapping[str, Tensor]) -> Iterator[Tensor]:
        for batch in (slice(0, 5), slice(5, 12)):  # shares of 5 and 7 of 12 examples
            outputs = functional_call(net, dict(params), (inputs[batch],))
            share = len(targets[batch]) / len(targets)
            yield share * nn.functional.cross_entropy(outputs, targets[batch])

    def loss(vector: Tensor) -> Tensor:
        outputs = functional_call(net, unflatten(vector, theta), (inputs,))
        return nn.functional.cross_entropy(outputs, targets)

    whole = torch.autograd.functional.hessian(loss, flatten(theta.values()))
    product = hessian_product(terms, theta)
    for column in torch.eye(22, dtype=torch.float64)[::5]:
        assert product(column) == pytest.approx(whole @ column, abs=1e-12)
    found = largest_eigenvalue(product, direction(theta, generator(0, "sharpness")), 1e-6, 5000)
    assert found.value == pytest.approx(float(torch.linalg.eigvalsh(whole)[-1]), rel=1e-5)


# ---------------------------------------------------------------- of runs


def test_the_quadratics_sharpness_is_its_largest_eigenvalue(run: Run) -> None:
    """A = [[4, 1], [1, 3]], of the notes: (7 + sqrt 5) / 2, wherever the run ended."""
    settings = {"dataset": "quadratic", "model": "quadratic", "partitioner": "natural"}
    folder = run(num_clients=10, fraction_train=1.0, learning_rate=0.1, **settings)
    found = sharpness_of(folder, Measurement(examples=0, distance=0.5, directions=200))
    assert found.eigenvalue == pytest.approx((7 + 5**0.5) / 2, rel=1e-3)
    assert found.error <= 0.01 * found.eigenvalue
    assert (found.round, found.examples) == (3, 40)
    theta = model(folder)["x"]
    assert found.length == pytest.approx(float(theta.norm()))


def test_the_loss_is_that_of_the_evaluation_of_the_same_examples(run: Run, monkeypatch) -> None:
    """Batches of 100, 100 and 50 of 250 examples count by their sizes."""
    monkeypatch.setattr("fedapp.runs.model_sharpness.BATCH_SIZE", 100)
    folder = run(model="2nn", learning_rate=0.2, eval_train_examples=250)
    found = sharpness_of(folder, Measurement(examples=250))
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert found.loss == pytest.approx(last["training_set_loss"])
    config, _ = read_stored(folder)
    data = load_dataset(config)
    whole = TrainingLoss(config, data, data.train)
    score = make_evaluator(config, data.task, data.train).score(model(folder))
    assert value_at(whole, model(folder)) == pytest.approx(score.loss)


@pytest.mark.parametrize(
    "model", ["seo-cnn", pytest.param("resnet18-gn", marks=pytest.mark.nightly)]
)
def test_networks_can_be_differentiated_twice(run: Run, model: str) -> None:
    small = {"seo-cnn.channels": 2, "seo-cnn.hidden": 8} if model == "seo-cnn" else {}
    folder = run(model=model, num_server_rounds=1, num_clients=40, fraction_train=0.02, **small)
    found = sharpness_of(folder, Measurement(examples=8, directions=1))
    assert np.isfinite([found.eigenvalue, found.rise]).all()
    assert found.eigenvalue > 0


def test_a_network_without_second_derivatives_is_refused(run: Run, tmp_path: Path) -> None:
    texts = write_parquet(
        tmp_path / "texts", {s: {"text": ["to be"] * 3} for s in ("train", "test")}
    )
    small = {"char-lstm.hidden": 2, "char-lstm.layers": 1, "text_unroll": 3, "num_clients": 2}
    folder = run(dataset=str(texts), model="char-lstm", num_server_rounds=1, **small)
    with pytest.raises(ConfigError, match=r"^model = 'char-lstm': .* no second derivatives"):
        sharpness_of(folder, Measurement(directions=1))


def test_sharpness_is_the_same_each_time_and_on_the_command_line(run: Run, tmp_path: Path) -> None:
    folder = run(model="2nn", learning_rate=0.2)
    how = Measurement(examples=100, distance=0.2, directions=3)
    found = sharpness_of(folder, how)
    assert sharpness_of(folder, how) == found
    options = ["--examples", "100", "--distance", "0.2", "--directions", "3"]
    other = shutil.copytree(folder, tmp_path / "another" / folder.name)
    said = CliRunner().invoke(
        cli, ["sharpness", str(folder), str(other), *options, "--to", f"{tmp_path}/no/such/s.json"]
    )
    assert said.exit_code == 0
    assert f"{found.eigenvalue:.3g}" in said.stdout
    both = json.loads((tmp_path / "no" / "such" / "s.json").read_text())
    assert list(both) == [str(folder), str(other)]  # of the same name, and both are there
    written = both[str(folder)]
    assert written["eigenvalue"] == found.eigenvalue
    assert (written["examples"], written["directions"], written["distance"]) == (100, 3, 0.2)


def test_the_round_is_the_models_where_the_run_went_on_and_was_stopped(run: Run) -> None:
    folder = run()
    metrics = folder / "metrics.jsonl"
    last = json.loads(metrics.read_text().splitlines()[-1])
    with metrics.open("a") as file:
        file.write(json.dumps(last | {"round": 4}) + "\n")
    assert sharpness_of(folder, Measurement(examples=8, directions=1)).round == 3
    save_file(model(folder), folder / "model.safetensors")  # as 0.2.0 wrote it
    assert sharpness_of(folder, Measurement(examples=8, directions=1)).round == 4


def test_runs_without_a_model_or_with_other_data_are_refused(run: Run, tmp_path: Path) -> None:
    folder = run()
    with pytest.raises(ConfigError, match=r"not the data of the run .* --dataset"):
        sharpness_of(folder, Measurement(), dataset="quadratic")
    save_file({"other": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is of another model"):
        sharpness_of(folder, Measurement())
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        sharpness_of(folder, Measurement())
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has not ended\. Resume it: fedapp run --resume"):
        sharpness_of(folder, Measurement())
    with pytest.raises(CheckpointError, match="holds no run"):
        sharpness_of(tmp_path / "nowhere", Measurement())
