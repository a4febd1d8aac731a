"""The configuration: what is accepted, and what a user reads who got it wrong."""

from __future__ import annotations

import io
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedapp import server
from fedapp.cli.generate import ROOT
from fedapp.cli.main import app, main
from fedapp.config.group import Case, cases_of, keys_of
from fedapp.config.key_docs import allowed
from fedapp.config.read import defaults, option_fields, parse_settings, read_config, split_settings
from fedapp.config.registry import FAMILIES
from fedapp.config.run_config import GROUPS, RunConfig
from fedapp.config.settings import snake
from fedapp.data.node_data import own_client
from fedapp.errors import CheckpointError, ConfigError, FedappError, RunError
from fedapp.runs.metrics import read_metrics
from fedapp.training.algorithm import Algorithm
from tests.conftest import SMALL, Run
from tests.in_process import metrics

BAD: list[tuple[dict[str, Any], list[str]]] = [
    # values out of bounds
    ({"num-server-rounds": 0}, ["num-server-rounds = 0", "greater than or equal to 1"]),
    ({"num-clients": -1}, ["num-clients = -1", "greater than or equal to 0"]),
    ({"fraction-train": 1.5}, ["fraction-train = 1.5", "less than or equal to 1"]),
    ({"fraction-train": -0.1}, ["fraction-train = -0.1", "Client fraction"]),
    ({"local-epochs": 0}, ["local-epochs = 0", "greater than or equal to 1"]),
    ({"local-steps": -2}, ["local-steps = -2"]),
    ({"batch-size": -10}, ["batch-size = -10", "0: all local data"]),
    ({"learning-rate": 0.0}, ["learning-rate = 0.0", "greater than 0"]),
    ({"learning-rate": float("nan")}, ["learning-rate = nan"]),
    ({"learning-rate": float("inf")}, ["learning-rate = inf", "finite"]),
    ({"dirichlet.alpha": float("nan")}, ["dirichlet.alpha = nan: must be a finite number"]),
    ({"learning-rate": 1e300}, ["learning-rate = 1e+300", "less than or equal to 1e+30"]),
    ({"weight-decay": 1e300}, ["weight-decay = 1e+300", "less than or equal to 1e+30"]),
    ({"learning-rate-decay": 1.01}, ["learning-rate-decay = 1.01", "less than or equal to 1"]),
    ({"momentum": 1.0}, ["momentum = 1.0", "less than 1"]),
    ({"weight-decay": -1e-4}, ["weight-decay = -0.0001"]),
    ({"clip-norm": -1.0}, ["clip-norm = -1.0"]),
    ({"server-learning-rate": -0.1}, ["server-learning-rate = -0.1"]),
    ({"seed": -1}, ["seed = -1"]),
    ({"threads": -1}, ["threads = -1"]),
    ({"eval-every": -1}, ["eval-every = -1"]),
    ({"pictures": "no"}, ["pictures = 'no': must be true or false. ", "The default is true."]),
    ({"nosuch": False}, ["nosuch = false: there is no such key"]),
    ({"model": "linear", "linear.x": 3}, ["'linear' has no such parameter. `fedapp keys`"]),
    ({"sampler": True}, ["sampler = true: must be a text. How"]),
    ({"checkpoint-every": -5}, ["checkpoint-every = -5"]),
    ({"min-nodes": 0}, ["min-nodes = 0"]),
    ({"node-timeout": 0.0}, ["node-timeout = 0.0"]),
    ({"round-deadline": -3.0}, ["round-deadline = -3.0"]),
    ({"dataset": ""}, ["dataset = ''"]),
    # values of the wrong type
    ({"num-clients": "100"}, ["num-clients = '100'", "whole number"]),
    ({"num-clients": 10.5}, ["num-clients = 10.5", "whole number"]),
    ({"local-epochs": True}, ["local-epochs = true", "whole number"]),
    ({"nesterov": 1}, ["nesterov = 1", "true or false"]),
    ({"learning-rate": "fast"}, ["learning-rate = 'fast'", "number"]),
    # choices that do not exist
    ({"weighting": "sizes"}, ["weighting = 'sizes'", "'auto', 'examples' or 'uniform'"]),
    ({"update": "gradient"}, ["update = 'gradient'", "'delta' or 'model'"]),
    ({"batch-sampling": "shuffle"}, ["batch-sampling = 'shuffle'", "'epoch' or 'uniform'"]),
    ({"precision": "float16"}, ["precision = 'float16'", "'float32' or 'float64'"]),
    ({"device": "gpu"}, ["device = 'gpu'", "cuda:N"]),
    ({"trainer": "fast"}, ["trainer = 'fast'"]),
    ({"evaluation": "none"}, ["evaluation = 'none'"]),
    ({"on-failure": "retry"}, ["on-failure = 'retry'", "'continue' or 'stop'"]),
    ({"model": "3nn"}, ["model = '3nn'", "Did you mean '2nn'"]),
    ({"partitioner": "dirichlett"}, ["partitioner = 'dirichlett'", "Did you mean 'dirichlet'"]),
    ({"transform": "none"}, ["transform = 'none'", "scale"]),
    # keys that do not exist
    ({"lr": 0.1}, ["lr = 0.1", "no such key", "fedapp keys"]),
    ({"dirichlet.beta": 0.1}, ["dirichlet.beta", "no such key"]),
    ({"options": 1}, ["options"]),
    # parameters of components
    ({"partitioner": "dirichlet", "dirichlet.alpha": 0.0}, ["dirichlet.alpha = 0.0"]),
    ({"partitioner": "dirichlet", "dirichlet.alpha": "a"}, ["dirichlet.alpha = 'a'", "number"]),
    ({"dirichlet.alpha": 0.1}, ["dirichlet.alpha = 0.1", "partitioner='dirichlet'"]),
    ({"2nn.hidden": 0}, ["2nn.hidden = 0"]),
    ({"partitioner": "shards", "shards.per-client": 0}, ["shards.per-client = 0"]),
    ({"scaffold.option": ["I"]}, ["scaffold.option = ['I']: must be one value", "The default is"]),
    *(
        ({"transform": "normalise", **numbers}, [message, "must be finite numbers"])
        for numbers, message in (
            ({"normalise.mean": "nan", "normalise.std": "1"}, "normalise.mean = 'nan'"),
            ({"normalise.mean": "0", "normalise.std": "inf"}, "normalise.std = 'inf'"),
            ({"normalise.mean": "0,1", "normalise.std": "1,nan"}, "normalise.std = '1,nan'"),
        )
    ),
    # combinations that make no sense
    ({"nesterov": True}, ["nesterov = true", "momentum=0.9"]),
    ({"update": "model", "server-learning-rate": 0.5}, ["server-learning-rate = 0.5", "Option I"]),
    *(
        (
            {"update": "model", "algorithm": name},
            ["update = 'model': has no effect", f"{name!r} send"],
        )
        for name in ("fednova", "fedpa", "fedsgd", "dp-fedavg", "local-dp")
    ),
    ({"local-steps": 10, "local-epochs": 2}, ["local-steps = 10", "local-epochs = 2"]),
    (
        {"algorithm": "fedavgm", "fedavgm.nesterov": True, "fedavgm.momentum": 0.0},
        ["fedavgm.nesterov = true: has no effect", "fedavgm.momentum is 0"],
    ),
    (
        {"algorithm": "fedpa", "fedpa.samples": 1, "fedpa.rho": 0.5},
        ["fedpa.rho = 0.5: has no effect", "fedpa.samples is 1"],
    ),
    (
        {"algorithm": "dp-fedavg", "min-replies": 2},
        ["min-replies = 2", "however many clients reply"],
    ),
    ({"local-epochs-decay": 0.0}, ["local-epochs-decay = 0.0", "greater than 0"]),
    ({"local-epochs-decay": 1.5}, ["local-epochs-decay = 1.5", "less than or equal to 1"]),
    (
        {"local-epochs-decay": 0.9, "local-steps": 10},
        ["local-epochs-decay = 0.9: has no effect", "counts steps", "local-steps=0"],
    ),
    (
        {"local-epochs-decay": 0.9, "local-epochs": 1},
        ["local-epochs-decay = 0.9: has no effect", "local-epochs = 1 is the least"],
    ),
    (
        {"batch-size-growth": 1.1, "batch-size": 0},
        ["batch-size-growth = 1.1: has no effect", "is all local data", "batch-size=10"],
    ),
    (
        {"batch-sampling": "uniform", "batch-size": 0},
        ["batch-sampling = 'uniform': has no effect", "is all local data", "batch-size=10"],
    ),
    (
        {"dirichlet.max-tries": 9, "dirichlet.min-size": 0, "partitioner": "dirichlet"},
        ["dirichlet.max-tries = 9: has no effect", "the first draw counts", "min-size=1"],
    ),
    (
        {
            "transform": "normalise",
            "normalise.preset": "mnist",
            "normalise.mean": "0.5",
            "normalise.std": "1",
        },
        ["normalise.preset = 'mnist': has no effect", "normalise.mean and normalise.std are given"],
    ),
    (
        {"batch-size-growth": 1.1, "algorithm": "fedsgd"},
        ["batch-size-growth = 1.1: has no effect", "take no steps", "algorithm='fedavg'"],
    ),
    (
        {"local-epochs-decay": 0.9, "algorithm": "fedsgd"},
        ["local-epochs-decay = 0.9: has no effect", "take no steps", "algorithm='fedavg'"],
    ),
    ({"resume": True}, ["resume = true", "run-dir"]),
    (
        {"dataset": "owner/set", "test-split": "train"},
        [
            "test-split = 'train': is train-split",
            "test-split to another split",
            "test-fraction=0.2",
        ],
    ),
    ({"target-accuracy": 0.9, "eval-every": 0}, ["target-accuracy = 0.9", "eval-every"]),
    ({"num-clients": 10, "fraction-train": 0.1, "min-replies": 2}, ["min-replies = 2"]),
    # keys that would have no effect
    (
        {"trainer": "sequential", "clients-together": 5},
        ["clients-together = 5", "trainer='batched'"],
    ),
    ({"trainer": "sequential", "program": "compile"}, ["program = 'compile'", "no effect"]),
    ({"fraction-train": 1.0, "over-selection": 0.2}, ["over-selection = 0.2", "all clients"]),
    (
        {"num-clients": 0, "fraction-train": 1.0, "over-selection": 0.2},
        ["over-selection = 0.2: has no effect, because all clients train each round"],
    ),
    ({"text-unit": "words"}, ["text-unit = 'words'", "dataset = 'digits' is embedded"]),
    ({"label-key": "y", "test-fraction": 0.2}, ["label-key = 'y'", "test-fraction = 0.2"]),
    (
        {"algorithm": "fedsgd", "momentum": 0.9, "nesterov": True, "weight-decay": 0.1},
        ["momentum = 0.9", "nesterov = true", "weight-decay = 0.1", "'fedsgd' take no steps"],
    ),
    (
        {"initial-weights": "he", "initial-model": "runs/first"},
        ["initial-weights = 'he': has no effect", "initial-model = 'runs/first' has the weights"],
    ),
    ({"algorithm": "fedsgd", "clip-norm": 1.0}, ["clip-norm = 1.0: has no effect"]),
    (
        {"algorithm": "fedsgd", "local-epochs": 3},
        ["local-epochs = 3: has no effect", "compute one gradient", "local-epochs=1"],
    ),
    ({"algorithm": "fedsgd", "local-steps": 3}, ["local-steps = 3: has no effect"]),
    (
        {"algorithm": "fedsgd", "batch-sampling": "uniform"},
        ["batch-sampling = 'uniform': has no effect"],
    ),
    # keys that break an algorithm's rule
    ({"algorithm": "fednova", "clip-norm": 1.0}, ["clip-norm = 1.0", "||a_k||_1"]),
    ({"algorithm": "scaffold", "clip-norm": 1.0}, ["clip-norm = 1.0", "scaffold.option='I'"]),
]


@pytest.mark.parametrize(("settings", "said"), BAD, ids=lambda v: str(v)[:60])
def test_a_bad_setting_is_one_clear_error(settings: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(settings)
    for words in said:
        assert words in str(error.value)
    assert "pydantic" not in str(error.value).lower()


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "fednova", "momentum": 0.9, "weight-decay": 0.1},
        {"algorithm": "scaffold", "momentum": 0.9, "weight-decay": 0.1},
        {"algorithm": "scaffold", "scaffold.option": "I", "clip-norm": 1.0},
    ],
    ids=str,
)
def test_what_an_algorithm_counts_with_is_allowed(settings: dict[str, Any]) -> None:
    assert read_config(settings).algorithm == settings["algorithm"]


def test_a_share_just_above_one_is_no_percentage() -> None:
    with pytest.raises(ConfigError, match=r"must be less than or equal to 1\. "):
        read_config({"fraction-train": 1.0000001})


def test_a_list_for_a_components_parameter_is_named_once() -> None:
    with pytest.raises(ConfigError) as error:
        read_config({"scaffold.option": ["I"], "dirichlet.alpha": [0.1, 0.2]})
    lines = str(error.value).splitlines()
    assert sorted(line.split(" = ")[0] for line in lines) == ["dirichlet.alpha", "scaffold.option"]


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        read_config({"learning-rate": -1.0, "momentum": 2.0, "lr": 1, "2nn.hidden": -1})
    said = str(error.value)
    for key in ("learning-rate = -1.0", "momentum = 2.0", "lr = 1"):
        assert key in said


def test_all_contradictions_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        read_config({"nesterov": True, "resume": True, "min-replies": 11})
    lines = str(error.value).splitlines()
    assert [line.split(" = ")[0] for line in lines] == ["min-replies", "nesterov", "resume"]


def test_each_key_is_of_one_group() -> None:
    keys = [key for group in GROUPS for key in keys_of(group)]
    assert keys == list(keys_of(RunConfig))
    assert len(set(keys)) == len(keys)


MARKED = [
    (key, case)
    for group in GROUPS
    for key in keys_of(group)
    for case in cases_of(group.model_fields[snake(key)])
]


@pytest.mark.parametrize(("key", "case"), MARKED, ids=lambda v: str(v)[:40])
def test_a_key_without_effect_is_named_with_the_reason(key: str, case: Case) -> None:
    """Also where only the data, or the algorithm, tell that it has none."""
    config = read_config({}).model_copy(update={snake(key): 7})
    (line,) = config.unused(case)
    assert line.startswith(f"{key} = 7: has no effect, because ")
    assert "{" not in line


BAD_RUNS: list[tuple[dict[str, Any], list[str]]] = [
    ({"partitioner": "shards", "num-clients": 7}, ["num-clients = 7", "shards.per-client"]),
    ({"device": "cuda:7"}, ["device = 'cuda:7'", "GPU"]),
    ({"model": "char-lstm"}, ["model = 'char-lstm'"]),
    (
        {"device": "cpu", "trainer": "batched", "program": "capture"},
        ["program = 'capture'", "needs a GPU", "program='auto'"],
    ),
]


@pytest.mark.parametrize(("settings", "said"), BAD_RUNS, ids=lambda v: str(v)[:60])
def test_a_run_that_cannot_be_is_refused_before_training(
    run: Run, tmp_path: Path, settings: dict[str, Any], said: list[str]
) -> None:
    with pytest.raises(FedappError) as error:
        run(**settings)
    for words in said:
        assert words in str(error.value)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"partitioner": "dirichlet", "alpha": 0.3}, "dirichlet.alpha"),
        ({"algorithm": "fedprox", "mu": 0.1}, "fedprox.mu"),
        ({"rounds": 3}, "num-server-rounds"),
        ({"federation.num-clients": 10}, "num-clients"),
        ({"clients": 10}, "num-clients"),
        ({"nesterow": True}, "nesterov"),
        ({"dirichlet.alp": 1.0}, "dirichlet.alpha"),
        ({"fedavg.clip": 1.0}, "dp-fedavg.clip"),
    ],
)
def test_the_key_that_was_meant_is_proposed(given: dict[str, Any], meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"no such key\. Did you mean '{re.escape(meant)}'\?"):
        read_config(given)


def test_a_parameter_of_a_component_that_is_not_chosen_is_no_other_one() -> None:
    with pytest.raises(ConfigError, match=r"no such key\. Choose a component called 'q-fedavg'"):
        read_config({"q-fedavg.q": 2})


def test_nodes_that_do_not_come_are_waited_for_no_longer_than_is_said(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_check_nodes", lambda *_: None)  # as in a deployment
    with pytest.raises(
        RunError, match=r"min-nodes = 2: only 1 accepted nodes within node-timeout = 0.2 s"
    ):
        run(min_nodes=2, node_timeout=0.2)


def test_a_folder_that_holds_a_run_is_not_overwritten(run: Run) -> None:
    folder = run()
    before = (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"run-dir .* holds a run already. Set resume=true"):
        run()
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run-dir = .*file.* cannot be written"):
        run(run_dir=str(tmp_path / "file"))


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"config": {')


def empty_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def truncate_tensors(folder: Path) -> None:
    for path in (folder / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])


def flip_a_bit(folder: Path) -> None:
    for path in (folder / "checkpoints").glob("*.safetensors"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(bytes(content))


def drop_tensors(folder: Path) -> None:
    for path in (folder / "checkpoints").glob("*.safetensors"):
        path.unlink()


def other_format(folder: Path) -> None:
    for path in (folder / "checkpoints").glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


def not_json(folder: Path) -> None:
    for path in (folder / "checkpoints").glob("*.json"):
        path.write_text("round 3")


def no_checkpoints(folder: Path) -> None:
    for path in (folder / "checkpoints").iterdir():
        path.unlink()


DAMAGES = [
    (damage_config, ["config.json is damaged", "it is not whole JSON", "another run-dir"]),
    (empty_config, ["config.json is damaged", "it has no 'config'", "another run-dir"]),
    (truncate_tensors, ["damaged", "SHA-256"]),
    (flip_a_bit, ["damaged", "SHA-256"]),
    (drop_tensors, ["cannot be read"]),
    (other_format, ["format 99"]),
    (not_json, ["cannot be read"]),
    (no_checkpoints, ["no checkpoint to resume from", "there is none"]),
]


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_damaged_run_is_not_resumed(run: Run, damage: Any, said: list[str]) -> None:
    folder = run()
    damage(folder)
    with pytest.raises(CheckpointError) as error:
        run(resume=True)
    for words in said:
        assert words in str(error.value)


def test_a_damaged_last_checkpoint_falls_back_to_the_one_before(run: Run) -> None:
    whole = run("whole", num_server_rounds=4, checkpoint_every=1)
    folder = run("run", num_server_rounds=4, checkpoint_every=1)
    (folder / "checkpoints" / "round-000004.safetensors").write_bytes(b"")
    (folder / "model.safetensors").unlink()
    run("run", num_server_rounds=4, checkpoint_every=1, resume=True)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_line_of_metrics_that_is_no_round_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1}\n{"round": 1, "seconds": {}}\n')
    with pytest.raises(
        CheckpointError, match=r"metrics.jsonl, line 1, is damaged: it has no 'round'"
    ):
        read_metrics(tmp_path / "metrics.jsonl")


def test_damaged_metrics_are_not_dropped_in_silence(run: Run) -> None:
    folder = run()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][:20], *lines[2:]]) + "\n")
    with pytest.raises(CheckpointError, match=r"metrics.jsonl, line 2, is damaged"):
        run(resume=True, num_server_rounds=5)


def test_a_resume_goes_back_to_a_checkpoint_that_the_metrics_reach(run: Run) -> None:
    """As the error on damaged metrics says: the lines from the damaged one on are removed."""
    settings = {"num_server_rounds": 4, "checkpoint_every": 1}
    whole, folder = run("whole", **settings), run("run", **settings)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:4]))  # rounds 0 to 3; kept are 3 and 4
    run("run", **settings, resume=True)
    assert metrics(folder) == metrics(whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("kept", "said"), [([], "has no round 0"), ([0, 1, 3, 4], "rounds 0 to 1")]
)
def test_a_resume_without_the_history_of_its_rounds_is_refused(
    run: Run, kept: list[int], said: str
) -> None:
    folder = run(num_server_rounds=4, checkpoint_every=1)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[round_] for round_ in kept))
    before = (folder / "summary.json").read_bytes()
    with pytest.raises(CheckpointError, match="no checkpoint to resume from") as error:
        run(num_server_rounds=4, checkpoint_every=1, resume=True)
    for words in (said, "checkpoint", "another run-dir"):
        assert words in str(error.value)
    assert (folder / "summary.json").read_bytes() == before


def test_resuming_nothing(run: Run) -> None:
    with pytest.raises(CheckpointError, match=r"holds no run .there is no such folder"):
        run(resume=True)


def test_resuming_with_other_settings(run: Run) -> None:
    run()
    with pytest.raises(ConfigError, match=r"learning-rate = 0.3 .the run has 0.2.") as error:
        run(resume=True, learning_rate=0.3)
    assert "fedapp run --resume" in str(error.value)


NODES = [
    ({}, {"num-clients": 0}, "neither data of its own nor a part of the run's"),
    (
        {"data_path": "d", "client-id": 1},
        {"num-clients": 0},
        "data_path = 'd': a node has no such key. Did you mean 'data-path'?",
    ),
    (
        {"state_path": "s"},
        {"num-clients": 4},
        "state_path = 's': a node has no such key. Did you mean 'state-path'?",
    ),
    ({"partition-id": 5, "num-partitions": 5}, {"num-clients": 0}, "partition-id = 5"),
    ({"data-path": "x"}, {"num-clients": 0}, "client-id = None"),
    ({"data-path": "x", "client-id": -1}, {"num-clients": 0}, "client-id = -1"),
    ({"data-path": "x", "client-id": "a"}, {"num-clients": 0}, "client-id = 'a'"),
    ({"data-path": "x", "client-id": 0}, {"num-clients": 5}, "num-clients = 5"),
]


@pytest.mark.parametrize(("node_config", "settings", "said"), NODES)
def test_a_node_config_that_does_not_fit(
    node_config: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        own_client(read_config(settings), node_config)
    assert said in str(error.value)


# ---------------------------------------------------------------------- what is accepted


def test_defaults_are_a_run() -> None:
    assert read_config(defaults()) == read_config({})


ALGORITHMS = next(family for family in FAMILIES if family.key == "algorithm").components()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_what_is_left_to_the_algorithm_is_its_own(name: str) -> None:
    """`flwr run` sends every key, as pyproject.toml has it; `fedapp run` those that are set."""
    algorithm = cast("type[Algorithm]", ALGORITHMS[name])
    config = read_config({"algorithm": name})
    assert config.weighting == algorithm.default_weighting
    assert config.server_learning_rate == algorithm.default_server_learning_rate
    assert read_config({**defaults(), "algorithm": name}) == config
    assert read_config(config.to_run_config()) == config


def test_what_is_set_is_obeyed() -> None:
    values = {"algorithm": "fedadam", "server-learning-rate": 1.0, "weighting": "uniform"}
    config = read_config(values)
    assert (config.server_learning_rate, config.weighting) == (1.0, "uniform")
    assert read_config({"algorithm": "multikrum", "weighting": "examples"}).weighting == "examples"


def test_option_two_takes_the_algorithms_own_server_learning_rate_or_one() -> None:
    two = {"update": "model", "algorithm": "fedadam"}
    assert read_config(two).server_learning_rate == 0.01
    assert read_config(read_config(two).to_run_config()) == read_config(two)
    assert read_config({**two, "server-learning-rate": 1.0}).server_learning_rate == 1.0
    with pytest.raises(ConfigError, match=r"so only 1 is allowed"):
        read_config({**two, "algorithm": "fedmedian", "server-learning-rate": 0.1})


@pytest.mark.parametrize("name", ["fedadam", "fedavgm", "scaffold", "feddyn"])
def test_option_two_takes_any_rate_where_the_algorithm_applies_it(name: str) -> None:
    config = read_config({"algorithm": name, "update": "model", "server-learning-rate": 0.3})
    assert config.server_learning_rate == 0.3


def test_whole_numbers_are_numbers() -> None:
    """`learning-rate=1` in a run-config is an int; it means 1.0."""
    assert read_config({"learning-rate": 1}).learning_rate == 1.0


def test_a_number_is_taken_for_a_text() -> None:
    values = {"run-dir": 5, "dataset": 2024, "transform": "normalise", "model": "2nn"}
    config = read_config({**values, "normalise.mean": 0.5, "normalise.std": 1})
    assert (config.run_dir, config.dataset) == ("5", "2024")
    assert config.component("transform").model_dump()["mean"] == "0.5"
    with pytest.raises(ConfigError, match=r"or empty\. Mean"):
        read_config({"transform": "normalise", "normalise.mean": "a"})
    with pytest.raises(ConfigError, match="run-dir = true: must be a text"):
        read_config({"run-dir": True})


def test_a_config_survives_its_own_run_config() -> None:
    config = read_config({**SMALL, "partitioner": "dirichlet", "dirichlet.alpha": 0.3})
    assert read_config(config.to_run_config()).to_run_config() == config.to_run_config()


KEYS = [*keys_of(RunConfig), *option_fields()]
LIKELY = st.integers(0, 12) | st.floats(0, 1) | st.booleans()
VALUES = LIKELY | st.integers() | st.floats() | st.text(max_size=9)


ANY_KEY = st.sampled_from(keys_of(RunConfig)) | st.sampled_from(KEYS) | st.text(max_size=12)


@given(st.dictionaries(ANY_KEY, VALUES, max_size=2))
def test_any_mapping_is_a_config_or_an_error_with_a_key_of_it(values: dict[str, Any]) -> None:
    try:
        assert isinstance(read_config(values), RunConfig)
    except ConfigError as error:
        assert any(key in str(error) for key in values)  # noqa: PT017


def test_every_key_has_a_meaning() -> None:
    for field in [*RunConfig.model_fields.values(), *option_fields().values()]:
        assert field.description


def test_component_parameters_are_unique_over_the_families() -> None:
    """A data set and its model may share a name, but not a parameter."""
    keys = [
        f"{name}.{field}"
        for family in FAMILIES
        for name, component in family.components().items()
        for field in component.model_fields
    ]
    assert len(keys) == len(set(keys))


def test_pyproject_holds_every_key_with_its_default() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= (
            {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
        )
    assert flat == defaults()


# ---------------------------------------------------------------------- the command line's values


def test_settings_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "more.toml"
    file.write_text("seed = 3\n[dirichlet]\nalpha = 0.2\n")
    values = parse_settings(
        ["learning-rate=0.3", "model=2nn", "nesterov=true", "x=False", 'a="b c"', str(file)]
    )
    assert values == {
        "learning-rate": 0.3,
        "model": "2nn",
        "nesterov": True,
        "x": False,
        "a": "b c",
        "seed": 3,
        "dirichlet.alpha": 0.2,
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num-server-rounds=300 local-epochs=5", ["num-server-rounds=300", "local-epochs=5"]),
        ("model='2nn'\n dataset=\"my data\" ", ["model='2nn'", 'dataset="my data"']),
        ("seed=[0, 1] model=['2nn', 'a ]']", ["seed=[0, 1]", "model=['2nn', 'a ]']"]),
        ("run-dir=it's dataset=it's", ["run-dir=it's", "dataset=it's"]),
        (" my settings.toml", ["my settings.toml"]),
        ("more.toml seed=3", ["more.toml", "seed=3"]),
        ("seed=[0, 1", ["seed=[0,", "1"]),
        ("seed = 3", ["seed", "=", "3"]),
        ("", []),
    ],
)
def test_a_run_config_text_is_read_as_flower_reads_it(text: str, words: list[str]) -> None:
    assert split_settings([text], ["seed=4"]) == [*words, "seed=4"]


def test_settings_outside_of_the_run_config_text_win() -> None:
    words = split_settings(["seed=1 model='2nn'", "seed=2 nesterov=true"], ["nesterov=false"])
    assert parse_settings(words) == {"seed": 2, "model": "2nn", "nesterov": False}


def test_a_file_of_settings_in_a_folder_with_an_equals_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("my runs", "lr=0.1", "resume.toml")
    file.parent.mkdir(parents=True)
    file.write_text("seed = 3\n")
    assert parse_settings([str(file), "model=2nn"]) == {"seed": 3, "model": "2nn"}
    assert split_settings([f" {file} "], None) == [str(file)]
    # Without such a file it is a setting, and so is a text that is longer than names of files.
    assert parse_settings(["run-dir=lr=0.1.toml"]) == {"run-dir": "lr=0.1.toml"}
    long = " ".join(["seed=1"] * 1000)
    assert split_settings([f"{long} x.toml"], None) == ["seed=1"] * 1000 + ["x.toml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "-c", "seed=1 learningrate=0.1"], "learningrate"),
        (["run", "--run-config", "model='3nn'"], "3nn"),
        (["sweep", "-c", "learning-rate=[0.1, -1]"], "learning-rate"),
        (["partition", "-c", "partitioner=shard"], "partitioner"),
        (["doctor", "-c", "seed 3"], "seed"),
    ],
)
def test_every_command_that_takes_settings_takes_a_run_config_text(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_a_number_that_names_something_stays_as_it_is_written() -> None:
    settings = ["run-dir=1.10", "dataset=1_000", "normalise.mean=0.50", "learning-rate=1_0.10"]
    assert list(parse_settings(settings).values()) == ["1.10", "1_000", "0.50", 10.1]


@pytest.mark.parametrize("setting", ["learning-rate", "--fast", "no-such-file.toml"])
def test_a_word_that_is_no_setting(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        parse_settings([setting])


def test_a_file_of_settings_in_another_encoding_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes("# Größe\nseed = 3\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"settings\.toml: cannot be read as TOML: .*utf-8"):
        parse_settings([str(file)])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("num-clients", "whole number ≥ 0"),
        ("learning-rate-decay", "number in (0, 1]"),
        ("resume", "true or false"),
        ("batch-sampling", '"epoch", "uniform"'),
        ("weighting", '"auto", "examples", "uniform"'),
        ("scaffold.option", '"I", "II"'),
        ("run-dir", "text"),
    ],
)
def test_what_a_key_may_be_in_words(key: str, said: str) -> None:
    assert allowed(key) == said


def test_what_a_component_may_be_in_words() -> None:
    assert "fedavg, " in allowed("algorithm")
    assert allowed("dataset").startswith("digits, ")
    assert allowed("dataset").endswith("a name on the hub, a folder")


def test_the_help_of_a_command_describes_its_arguments() -> None:
    """click 8.5 drops it with the typer that flwr allows."""
    assert "A component: a name" in CliRunner().invoke(app, ["keys", "--help"]).output


def test_an_encoding_without_a_symbol_ends_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bounds, the sign of "at least"."""
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    monkeypatch.setattr("sys.argv", ["fedapp", "keys", "fedprox"])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert ended.value.code in (None, 0)
    assert b"fedprox.mu" in raw.getvalue()
    assert b"?" in raw.getvalue()
