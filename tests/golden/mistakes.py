"""Wrong settings, for the texts that a user reads: ``errors.json`` has each text.

Each key gets a value of the wrong type and those beyond its bounds (found by trying, once, when the
texts are written: ``python -m tests.golden errors``); the rules between keys are listed here.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.golden.driver import DATA, Run, ScriptedGrid, command, start, write_data, write_start

TABLE = Path(__file__).parent / "errors.json"
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
NOT_THERE = "no-such-run"
"""The run that is to be resumed, so that settings that are right after all start no run."""
BEYOND: Mapping[type, tuple[Any, ...]] = {
    int: ("x", -1, 0, 1.5),
    float: ("x", -1.0, 0.0, 1.0, 1.5, 11.0, float("inf")),
    str: (True, "no-such-choice"),
    bool: (1,),
}
"""What each key is tried with, by the type of its default."""
ANY_TEXT = ("dataset", "run-dir")
"""Keys that any text is right for; of a dataset, it is the hub that decides."""
NEW: dict[str, Any] = {"resume": False, "num-server-rounds": 1}
"""A run that is not resumed: what is wrong is found when nodes or states are looked at."""
QUADRATIC = {"dataset": "quadratic", "model": "quadratic"}

RULES: tuple[dict[str, Any], ...] = (
    # keys that there are not
    {"learning_rate": 0.1},
    {"lr": 0.1},
    {"dirichlet.beta": 0.1},
    {"options": 1},
    {"learning-rate": -1.0, "momentum": 2.0, "lr": 1, "2nn.hidden": -1},
    {"scaffold.option": ["I"]},
    {"scaffold.option": ["I"], "dirichlet.alpha": [0.1, 0.2]},
    # components that there are not
    {"algorithm": "fedavgg"},
    {"model": "3nn"},
    {"partitioner": "dirichlett"},
    {"transform": "none"},
    {"transform": "normalise", "normalise.mean": "a"},
    {"transform": "normalise", "normalise.preset": "mnistt"},
    {"device": "cuda:x"},
    # parameters of what is not chosen
    {"dirichlet.alpha": 0.1},
    {"fedprox.mu": 0.5},
    {"quadratic.clients": 4},
    {"model": "linear", "2nn.hidden": 8},
    # combinations
    {"nesterov": True},
    {"local-steps": 10, "local-epochs": 2},
    {"local-epochs-decay": 0.9, "local-steps": 10},
    {"local-epochs-decay": 0.9, "local-epochs": 1},
    {"batch-size-growth": 1.1, "batch-size": 0},
    {"initial-weights": "he", "initial-model": "runs/first"},
    {"resume": True, "run-dir": ""},
    {"target-accuracy": 0.9, "eval-every": 0},
    {"num-clients": 10, "fraction-train": 0.1, "min-replies": 2},
    {"fraction-train": 1.0, "over-selection": 0.2},
    {"trainer": "sequential", "clients-together": 5},
    {"trainer": "sequential", "program": "compile"},
    {"update": "model", "server-learning-rate": 0.5},
    {"update": "model", "algorithm": "fedmedian", "server-learning-rate": 0.1},
    # an embedded data set is not read
    *(
        {key: value}
        for key, value in (
            *(("dataset-subset", "a"), ("train-split", "a"), ("test-split", "a")),
            *(("input-key", "a"), ("label-key", "a"), ("test-fraction", 0.2)),
            *(("client-key", "a"), ("text-unit", "words"), ("text-example", "line")),
            *(("text-unroll", 9), ("text-vocabulary", 9), ("text-client-words", 9)),
        )
    ),
    # an algorithm's rules
    {"algorithm": "fedsgd", "local-epochs": 3},
    {"algorithm": "fedsgd", "local-steps": 3},
    {"algorithm": "fedsgd", "batch-sampling": "uniform"},
    {"algorithm": "fedsgd", "momentum": 0.9, "nesterov": True, "weight-decay": 0.1},
    {"algorithm": "fedsgd", "clip-norm": 1.0},
    {"algorithm": "fedsgd", "local-epochs": 3, "local-epochs-decay": 0.9},
    {"algorithm": "fedsgd", "batch-size-growth": 1.1},
    {"algorithm": "fednova", "clip-norm": 1.0},
    {"algorithm": "scaffold", "clip-norm": 1.0},
    {"algorithm": "bulyan", "num-clients": 10},
    {"algorithm": "krum", "krum.num-malicious": 4},
    {"algorithm": "multikrum", "multikrum.num-selected": 30},
    {"algorithm": "fedtrimmedavg", "fedtrimmedavg.beta": 0.7},
    *(
        {"algorithm": name, **wrong}
        for name in ("dp-fedavg", "local-dp")
        for wrong in (
            {"weighting": "examples"},
            {"over-selection": 0.5},
            {"fraction-train": 0.0},
            {f"{name}.clip": 0.0, f"{name}.noise": 1.0},
            {f"{name}.noise": 0.0, f"{name}.max-epsilon": 3.0},
        )
    ),
    {"algorithm": "dp-fedavg", "dp-fedavg.adaptive": True, "dp-fedavg.clip": 0.5},
    {"algorithm": "dp-fedavg", "dp-fedavg.adaptive": True, "dp-fedavg.count-noise": 0.001},
    {"algorithm": "dp-fedavg", "dp-fedavg.quantile": 0.9, "dp-fedavg.count-noise": 9.0},
    {"algorithm": "fedbn", "evaluation": "server", "model": "cnn-bn"},
    {"model": "cnn-bn", "algorithm": "fedavg"},
    {"model": "cnn-bn", "algorithm": "fedbn", "evaluation": "clients", "batch-size": 1, **NEW},
    {"algorithm": "moon", **QUADRATIC},
    {"algorithm": "fedlc", **QUADRATIC},
    {"algorithm": "fedntd", **QUADRATIC},
    # models, transforms and data that do not fit each other
    {"model": "quadratic"},
    {"dataset": "quadratic"},
    {"model": "char-lstm"},
    {"model": "resnet18-gn", "resnet18-gn.groups": 7},
    {"transform": "cifar24"},
    {"transform": "normalise", "normalise.preset": "cifar10"},
    {"initial-weights": "he", **QUADRATIC},
    {**NEW, "initial-model": "{data}/no-such-model"},
    {**NEW, "initial-model": "{data}/plays/train.parquet"},
    {**NEW, "initial-model": "{data}/start.safetensors"},
    # partitions
    {"num-clients": 2000},
    {"partitioner": "shards", "num-clients": 7},
    {"partitioner": "shards", "num-clients": 1000},
    {"partitioner": "label-quantity", "label-quantity.labels": 11},
    {"partitioner": "label-quantity", "label-quantity.labels": 1, "num-clients": 1440},
    {"partitioner": "sizes", "sizes.growth": "exponential"},
    {"partitioner": "natural"},
    {"partitioner": "natural", "natural.column": "who"},
    {"partitioner": "natural", "num-clients": 11, **QUADRATIC},
    {"partitioner": "natural", "natural.column": "who", **QUADRATIC},
    {"partitioner": "dirichlet", "dirichlet.alpha": 0.01, "dirichlet.min-size": 30},
    {"partitioner": "dirichlet", "dirichlet.min-size": 2000, "num-clients": 3},
    {"partitioner": "dirichlet", "dirichlet.min-size": 500, "num-clients": 3},
    # data that cannot be read
    {"dataset": "/no/such/folder"},
    {"dataset": "{data}/plays/train.parquet"},
    {"dataset": "{data}/grey28", "train-split": "training"},
    {"dataset": "{data}/grey28", "test-split": "validation"},
    {"dataset": "{data}/grey28", "input-key": "pixels"},
    {"dataset": "{data}/grey28", "input-key": "label"},
    {"dataset": "{data}/grey28", "label-key": "digit"},
    {"dataset": "{data}/grey28", "text-unit": "words", "text-unroll": 5},
    {"dataset": "{data}/grey28", "partitioner": "natural"},
    {"dataset": "{data}/plays", "input-key": "line_no"},
    {"dataset": "{data}/plays", "text-client-words": 10},
    {"dataset": "{data}/plays", "text-vocabulary": 10},
    {"dataset": "{data}/plays", "client-key": "author"},
    {"dataset": "{data}/plays", "model": "2nn", "num-clients": 3},
    {"dataset": "{data}/plays", "model": "char-lstm", "transform": "normalise", "num-clients": 3},
    {"dataset": "{data}/plays", "model": "word-lstm", "num-clients": 500},
)

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("run", "learning-rate"),
    ("run", "no-such-file.toml"),
    ("run", "--run-config", "seed = 3"),
    ("run", "min-nodes=2"),
    ("run", "device=cpu", "trainer=batched", "program=capture"),
    ("run", "--workers", "2", "--nodes", "3"),
    ("run", "--ray-address", "auto"),
    ("run", "--worker-timeout", "3"),
    ("run", "--resume", "no-such-folder"),
    ("run", "--resume", "no-such-folder", "run-dir=another"),
    ("run", "--resume", "no-such-folder", "resume=false"),
    ("status", "no-such-folder"),
    ("compare", "no-such-folder"),
    ("compare", "no-such-folder", "--target", "95"),
    ("report", "no-such-folder"),
    ("updates", "no-such-folder"),
    ("partition", "partitioner=none"),
    ("sweep", "seed=[0"),
    ("sweep", "seed=[]"),
    ("sweep", "learning-rate=[0.1, -1.0]"),
    ("sweep", "seed=[0,1]", "--best-of", "momentum"),
    ("reproduce", "no-such-item"),
    ("reproduce", "all", "--scale", "huge"),
    ("reproduce", "seo-fig1", "--only", "nothing"),
)
"""Wrong commands: each ends with one line, which begins with Error."""


def run_config() -> dict[str, Any]:
    """Return every run-config key with its default, as ``pyproject.toml`` has them for Flower."""
    table = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
    flat: dict[str, Any] = {}
    for key, value in table.items():
        parts = {f"{key}.{own}": of for own, of in value.items()} if isinstance(value, dict) else {}
        flat |= parts or {key: value}
    return flat


def beyond() -> Iterator[dict[str, Any]]:
    """Yield each key with each value that it may refuse."""
    for key, default in run_config().items():
        tried = BEYOND[type(default)]
        yield from ({key: value} for value in (tried[:1] if key in ANY_TEXT else tried))
    yield from ({"seed": 2**63}, {"learning-rate": float("nan")})


def text_of(settings: Mapping[str, Any], folder: Path) -> str:
    """Return what is said of settings, or "" if they are right; ``folder`` stands as "."."""
    for name in DATA:
        write_data(name, folder / "data")
    write_start(folder / "data")
    placed = {
        key: value.replace("{data}", str(folder / "data")) if isinstance(value, str) else value
        for key, value in settings.items()
    }
    common = {"run-dir": str(folder / NOT_THERE), "data-cache": str(folder / "cache")}
    values = {**common, "resume": True, "pictures": False, **placed}
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        start(ScriptedGrid(Run("wrong", {}), {"run-dir": values["run-dir"]}), values)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".replace(str(folder), ".")
        return "" if NOT_THERE in said else said
    finally:
        logger.setLevel(level)
    return ""


def read() -> dict[str, list[tuple[Any, str]]]:
    """Return settings, and commands, with what is said of them."""
    kept = json.loads(TABLE.read_text())
    return {kind: [(entry["given"], entry["said"]) for entry in kept[kind]] for kind in kept}


def write(folder: Path) -> None:
    """Write what is said of all that is tried, and is wrong.

    A value within the bounds of a parameter that is not chosen has no effect, which is no bound's text.
    """
    settings = [(given, text_of(given, folder)) for given in beyond()]
    settings = [(given, said) for given, said in settings if "has no effect" not in said]
    settings += [(given, text_of(given, folder)) for given in RULES]
    commands = [(given, command(given)) for given in COMMANDS]
    kept = {
        kind: [{"given": given, "said": said} for given, said in texts if said]
        for kind, texts in (("settings", settings), ("commands", commands))
    }
    TABLE.write_text(json.dumps(kept, indent=0) + "\n")
