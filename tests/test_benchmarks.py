"""The benchmarks' own arithmetic, on made-up times: nothing here is timed."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
import typer
from rich.console import Console

from benchmarks import gpu, load, peers, same_numbers, scaling
from benchmarks import rows as rows_of
from benchmarks.convolutions import Case, compare, variants
from benchmarks.house import code_lines
from benchmarks.stacked import stacked
from benchmarks.stand_in import write_cifar10, write_mnist
from benchmarks.turns import WARM_UP, ratio, take_turns
from benchmarks.workloads import WORKLOADS
from fedapp.config.read import read_config
from fedapp.data.dataset import Task
from fedapp.data.load import load_dataset
from fedapp.data.node_data import read_node_data


def test_a_ratio_is_the_median_over_turns_not_of_medians() -> None:
    assert ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2.0
    assert ratio([1.0, 10.0, 3.0], [2.0, 20.0, 1.0]) == 0.5
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_code_lines_are_without_docstrings_comments_and_blanks() -> None:
    """The import, the signature and the return."""
    text = '"""Doc\n\nmore."""\n\nimport a\n\n\ndef f():\n    """Doc."""\n    # no\n    return 1\n'
    assert code_lines(text) == {5, 8, 11}


def test_rows_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks by one second at each look; the first turns do not count."""
    ticks = itertools.count()
    monkeypatch.setattr("benchmarks.turns.time.perf_counter", lambda: float(next(ticks)))
    seen: list[str] = []
    calls = {name: (lambda name=name: seen.append(name)) for name in ("bare", "ours")}
    assert take_turns(calls, 3) == {"bare": [1.0] * 3, "ours": [1.0] * 3}
    assert seen == ["bare", "ours"] * 4
    seen.clear()
    assert take_turns(calls, 2, repeat=5) == {"bare": [0.2] * 2, "ours": [0.2] * 2}
    assert len(seen) == 2 * 5 * (2 + WARM_UP)


@pytest.mark.slow
def test_a_tenth_of_faulty_nodes_costs_no_good_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rubbish of three kinds, errors, silence: each is counted, and the model is the others' mean."""
    (tmp_path / "data").mkdir()
    write_mnist(tmp_path / "data", train=600, test=10)
    monkeypatch.setattr(load.logging, "disable", lambda _: None)
    measured = load.measure(load.Cell("2nn", 100, deadline=6.0), str(tmp_path))
    assert measured.received == pytest.approx(90 * 199_210 * 4 / 2**20, rel=0.01)


@pytest.mark.nightly
@pytest.mark.process
def test_a_process_of_a_benchmark_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.data_cache", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "DataError" in ended.stderr


def test_the_rows_of_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both bare loops come first: they are what the ratios are of."""
    monkeypatch.delenv("FEDAPP_DATA", raising=False)

    def idle(*_: object, **__: object) -> object:
        return lambda: None

    for name in ("bare_loop", "trainer_round", "inline_round"):
        monkeypatch.setattr(rows_of, name, idle)
    for name in ("bare_loops", "workers_round"):
        monkeypatch.setattr(rows_of, name, lambda *_: contextlib.nullcontext(lambda: None))
    config = WORKLOADS["W1"].config(str(tmp_path), 1)
    assert config is not None
    with contextlib.ExitStack() as stack:
        found = [name for name, _ in rows_of.rows(config, read_node_data(config, None), 2, stack)]
    assert found[:2] == ["bare loop, one process", "bare loop, 2 processes of one thread"]
    assert {"trainer sequential", "trainer batched", "Ray workers, 2, sequential"} <= set(found)


@pytest.mark.nightly
def test_peers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that need no peer are there all the same."""

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delenv("FEDAPP_DATA", raising=False)
    monkeypatch.setattr("benchmarks.peers.importlib.metadata.version", version)
    for name in ("bare_loops", "workers_round"):
        monkeypatch.setattr(peers, name, lambda *_: contextlib.nullcontext(lambda: None))
    monkeypatch.setattr(peers, "console", Console(file=io.StringIO(), width=200))
    peers.measure("W1", WORKLOADS["W1"], 1, 2, 0)
    table = peers.console.file.getvalue()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines()]
    found = {row[0]: row[1] for row in rows if len(row) == 3}
    assert found["pfl-research, 2 processes"] == "not installed: pip install pfl"
    assert found["FedJAX, jit, 1 device"] == "not installed: pip install fedjax jax"
    assert found["FedJAX, pmap, 2 devices"] == 'not installed: pip install fedjax "jax<0.8"'
    assert {"bare loop, 2 processes of one thread", "Ray workers, 2, batched"} <= set(found)


def test_a_peer_needs_the_versions_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"fedjax": "0.0.17", "jax": "0.8.0"}
    monkeypatch.setattr("benchmarks.peers.importlib.metadata.version", found.__getitem__)
    _, jit, pmap = peers.PEERS
    assert (jit.lacks(), jit.name(2)) == ("", "FedJAX, jit, 1 device (fedjax 0.0.17, jax 0.8.0)")
    assert pmap.lacks()
    found["jax"] = "0.7.2"
    assert (pmap.lacks(), pmap.name(2)) == (
        "",
        "FedJAX, pmap, 2 devices (fedjax 0.0.17, jax 0.7.2)",
    )


def test_the_gpu_benchmark_says_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(typer.BadParameter, match=r"this process sees 0 GPUs.*--device cpu"):
        gpu.main(["W1"])


def test_a_workload_without_its_data_is_refused_before_any_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDAPP_DATA", raising=False)
    with pytest.raises(SystemExit, match="W2 needs FEDAPP_DATA with mnist"):
        scaling.main(["W1", "W2"])


def test_a_round_that_fails_in_a_batch_of_runs_ends_the_benchmark() -> None:
    def failing() -> None:
        raise ValueError("no round")

    with pytest.raises(ValueError, match="no round"):
        stacked([failing, lambda: None])()


@pytest.mark.parametrize("model", ["seo-cnn", "cifar-tf"])
def test_ways_to_several_clients_gradients_agree(model: str) -> None:
    """Grouped convolutions, products, and one client after another, on small images."""
    task = Task("image", (2, 8, 8), 3)
    found = {
        name: variant.gradients(*variant.given)
        for name, variant in variants(Case(model, 2, 3), task, torch.device("cpu")).items()
    }
    grouped, products, one, laid = found.values()
    for all_, same, first, other in zip(grouped, products, one, laid, strict=True):
        torch.testing.assert_close(all_, same)
        torch.testing.assert_close(all_[0], first)
        torch.testing.assert_close(first, other)


@pytest.mark.slow
def test_the_comparison_of_convolutions_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Console(file=io.StringIO(), width=120)
    monkeypatch.setattr(gpu, "console", said)
    table = compare(torch.device("cpu"), 1, [Case("pfl-cnn", 2, 1)], Task("image", (1, 12, 12), 2))
    assert (len(table.rows), len(table.columns)) == (4, 4)
    monkeypatch.setattr(gpu, "compare", lambda device, turns: table)
    gpu.main(["convolutions"], device="cpu", turns=1)
    assert "2 x pfl-cnn, B = 1" in said.file.getvalue()  # type: ignore[attr-defined]


WITHOUT_FLOWER = """
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"flwr", "flwr_datasets", "ray", "datasets", "dp_accounting"}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Nowhere())
from benchmarks import gpu
from fedapp.config.read import read_config
config = read_config({"2nn.hidden": 2})
node_data = gpu.read_node_data(config, None)
gpu.trainer_round(config, node_data)()
assert gpu.whole_round(config, node_data) is None
"""


@pytest.mark.process
def test_the_gpu_benchmark_needs_neither_flower_nor_ray() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_FLOWER], check=True, timeout=120)


@pytest.mark.parametrize(
    ("write", "counts", "sizes", "shape"),
    [
        (write_mnist, {"train": 20, "test": 5}, (20, 5), (1, 28, 28)),
        (write_cifar10, {"each": 4}, (20, 4), (3, 32, 32)),
    ],
)
def test_random_images_that_stand_in_for_a_data_set(
    write: Callable[..., None],
    counts: dict[str, int],
    sizes: tuple[int, int],
    shape: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """Of its shape and with its ten classes, in its own format."""
    write(tmp_path, **counts)
    found = load_dataset(read_config({"dataset": str(tmp_path)}))
    assert (len(found.train), len(found.test)) == sizes
    assert (found.task.input_shape, found.task.num_classes) == (shape, 10)


def left_behind(folder: Path, loss: float, bytes_: int, weight: float) -> Path:
    """Write what a run of one round leaves behind for a comparison."""
    folder.mkdir()
    record = {
        "round": 1,
        "seconds": {"round": loss},
        "clients": [0, 2],
        "train_loss": loss,
        "bytes_up": bytes_,
        "failures": {"2": f"because of {bytes_}"},
    }
    (folder / "result.json").write_text(json.dumps({"records": [record], "error": ""}))
    weights = {"w": np.array([1.0, weight], np.float32)}
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    return folder


def test_two_commits_may_differ_in_seconds_texts_and_few_bytes_alone(tmp_path: Path) -> None:
    before = left_behind(tmp_path / "before", 0.5, 1000, 2.0)
    same = left_behind(tmp_path / "same", 0.5, 1019, 2.0)
    assert list(same_numbers.differences(before, same)) == []
    other = left_behind(tmp_path / "other", 0.5, 1021, float(np.nextafter(np.float32(2), 3)))
    assert list(same_numbers.differences(before, other)) == [
        "round 1: bytes_up = 1000, now 1021",
        "w: differs by up to 2.38e-07",
    ]
    later = left_behind(tmp_path / "later", float(np.nextafter(0.5, 1)), 1000, 2.0)
    assert list(same_numbers.differences(before, later)) == [
        "round 1: train_loss = 0.5, now 0.5000000000000001"
    ]
