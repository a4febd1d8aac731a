"""The list of pinned runs.

``VARIANTS`` are one run carried out by different trainers: they share one set of numbers. ``RUNS``
are all others. Each takes a few tenths of a second.
"""

from __future__ import annotations

from tests.golden.driver import Run, Scalar

Settings = dict[str, Scalar]

COMMON: Settings = {"device": "cpu", "pictures": False, "num-server-rounds": 3}
SMALL: Settings = {"2nn.hidden": 8, "initial-model": "{data}/start.safetensors"}
"""A network that begins with weights of the driver's: see ``LOOSE``."""
DIGITS: Settings = {
    **COMMON,
    "num-clients": 10,
    "fraction-train": 0.8,
    "local-epochs": 1,
    "batch-size": 16,
    **SMALL,
    "partitioner": "dirichlet",
    "dirichlet.alpha": 0.5,
    "dirichlet.sigma": 0.5,
}
"""Eight of ten clients of different sizes, with different labels."""
QUADRATIC: Settings = {
    **COMMON,
    "num-server-rounds": 4,
    "num-clients": 10,
    "dataset": "quadratic",
    "model": "quadratic",
    "partitioner": "natural",
    "quadratic.size-ratio": 3,
    "quadratic.curvature": 0.5,
    "quadratic.noise": 0.5,
    "learning-rate": 0.05,
    "local-epochs": 2,
    "batch-size": 3,
}
FEW: Settings = {
    **COMMON,
    "dataset": "{data}/eighteen",
    "num-clients": 4,
    "fraction-train": 1.0,
    "local-epochs": 2,
    "batch-size": 4,
    **SMALL,
    "partitioner": "dirichlet",
    "dirichlet.alpha": 0.2,
    "dirichlet.min-size": 0,
    "seed": 918,
}
"""Clients of 1, 5, 0 and 12 examples."""
IMAGES: Settings = {
    **COMMON,
    "num-server-rounds": 2,
    "num-clients": 4,
    "fraction-train": 0.5,
    "local-epochs": 1,
    "batch-size": 5,
    "learning-rate": 0.05,
}
PLAYS: Settings = {
    **IMAGES,
    "dataset": "{data}/plays",
    "partitioner": "natural",
    "natural.column": "role",
    "num-clients": 3,
    "fraction-train": 0.67,
    "local-epochs": 2,
    "batch-size": 2,
    "text-unroll": 12,
    "learning-rate": 0.5,
}
MOMENTUM: Settings = {"momentum": 0.9, "nesterov": True, "weight-decay": 0.01}

ALGORITHMS: dict[str, Settings] = {
    "bulyan": {},
    "dp-fedavg": {"dp-fedavg.entropy": "seed", "dp-fedavg.noise": 0.3},
    "fedadagrad": {},
    "fedadam": {},
    "fedavg": {},
    "fedavgm": {},
    "fedbn": {"evaluation": "clients"},
    "feddyn": {},
    "fedlc": {},
    "fedmedian": {},
    "fednova": {"momentum": 0.5},
    "fedntd": {},
    "fedpa": {"fedpa.samples": 2},
    "fedprox": {},
    "fedsam": {},
    "fedsgd": {},
    "fedsmoo": {},
    "fedsol": {},
    "fedtrimmedavg": {},
    "fedyogi": {},
    "krum": {},
    "local-dp": {"local-dp.entropy": "seed", "local-dp.noise": 0.3},
    "moon": {},
    "multikrum": {},
    "scaffold": {},
}
"""What each algorithm is run with, beside ``DIGITS``."""

TRAINERS: dict[str, Settings] = {
    "sequential": {"trainer": "sequential"},
    "batched": {"trainer": "batched", "program": "record", "clients-together": 1},
    "together": {"trainer": "batched", "program": "record", "clients-together": 2},
}
COMPILED: Settings = {"trainer": "batched", "program": "compile", "clients-together": 2}


def _variants() -> dict[str, list[Run]]:
    named = {name: {**DIGITS, "algorithm": name, **own} for name, own in ALGORITHMS.items()}
    return {
        name: [Run(f"{name}-{kind}", {**own, **trainer}) for kind, trainer in TRAINERS.items()]
        for name, own in (named | OPTIONS).items()
    }


OPTIONS: dict[str, Settings] = {
    "option-two": {
        **DIGITS,
        "update": "model",
        "batch-sampling": "uniform",
        "local-steps": 7,
        "local-epochs": 5,
    },
    "infinite-batches": {**DIGITS, "batch-size": 0, "local-epochs": 2},
    "momentum-and-clipping": {**DIGITS, **MOMENTUM, "clip-norm": 0.5},
    "decays": {
        **QUADRATIC,
        "local-epochs": 4,
        "local-epochs-decay": 0.7,
        "learning-rate-decay": 0.8,
        "batch-size-growth": 1.5,
    },
    "sizes": {**FEW},
    "empty-client-uniform": {**FEW, "weighting": "uniform"},
    "empty-client-scaffold": {**FEW, "algorithm": "scaffold"},
    "scaffold-one": {**QUADRATIC, **MOMENTUM, "algorithm": "scaffold", "scaffold.option": "I"},
    "scaffold-two": {**QUADRATIC, **MOMENTUM, "algorithm": "scaffold", "scaffold.option": "II"},
    "mnist-cnn": {
        **IMAGES,
        "dataset": "{data}/grey28",
        "model": "mnist-cnn",
        "mnist-cnn.hidden": 16,
    },
    "char-lstm": {**PLAYS, "model": "char-lstm", "char-lstm.hidden": 8},
}
"""What all trainers do beside the algorithms."""

VARIANTS = _variants()


def _runs() -> list[Run]:
    found = [Run(name, settings) for name, settings in PLAIN.items()]
    found += [Run(name, {**DIGITS}, nodes, faults=faults) for name, nodes, faults in FAULTS]
    found += [Run(name, {**DIGITS, **more}, 4, faults=faults) for name, more, faults in FURTHER]
    for after in (1, 2, 3):
        for name in ("fedavg", "fedadam", "scaffold", "feddyn"):
            found.append(resumed(name, after))
    return [*found, *PLACES]


PLAIN: dict[str, Settings] = {
    "adaptive-clipping": {
        **DIGITS,
        "algorithm": "dp-fedavg",
        "dp-fedavg.entropy": "seed",
        "dp-fedavg.noise": 0.3,
        "dp-fedavg.adaptive": True,
    },
    "most-epsilon": {
        **DIGITS,
        "algorithm": "local-dp",
        "local-dp.entropy": "seed",
        "local-dp.noise": 1.0,
        "local-dp.max-epsilon": 9.0,
    },
    "normalised-by-client": {
        **COMMON,
        "algorithm": "fedbn",
        "dataset": "skewed-digits",
        "skewed-digits.clients": 6,
        "num-clients": 6,
        "partitioner": "natural",
        "model": "cnn-bn",
        "cnn-bn.width": 4,
        "evaluation": "clients",
        "fraction-train": 0.5,
        "local-epochs": 1,
        "batch-size": 40,
        "learning-rate": 0.05,
        "num-server-rounds": 2,
    },
    "recorded-updates": {**DIGITS, "record-updates": True},
    "evaluated-everywhere": {**DIGITS, "evaluation": "both", "eval-train-examples": 50},
    "evaluated-at-the-end": {**DIGITS, "eval-every": 0},
    "target": {**DIGITS, "target-accuracy": 0.3, "num-server-rounds": 10, "learning-rate": 0.5},
    "two-threads": {**DIGITS, "threads": 2},
    "server-rate": {**DIGITS, "server-learning-rate": 0.5, "fedavgm.nesterov": True}
    | {"algorithm": "fedavgm"},
    **{
        name: {**DIGITS, "initial-model": "", "initial-weights": name}
        for name in ("model", "he", "glorot", "truncated-normal")
    },
    "linear-shards": {**COMMON, "model": "linear", "partitioner": "shards", "num-clients": 20},
    "linear-by-sizes": {**COMMON, "model": "linear", "partitioner": "sizes", "num-clients": 12},
    "label-quantity": {**COMMON, "model": "linear", "partitioner": "label-quantity"},
    "log-normal-sizes": {**COMMON, "model": "linear", "partitioner": "sgm", "sgm.sigma": 1.0},
    "seo-cnn": {
        **IMAGES,
        "dataset": "{data}/colour32",
        "model": "seo-cnn",
        "seo-cnn.channels": 4,
        "seo-cnn.hidden": 16,
        "transform": "normalise",
    },
    "pfl-cnn": {**IMAGES, "dataset": "{data}/grey28", "model": "pfl-cnn"},
    "cropped-cifar": {
        **IMAGES,
        "dataset": "{data}/colour32",
        "model": "cifar-tf",
        "transform": "cifar24",
        "trainer": "batched",
        "program": "record",
    },
    "cropped-cifar-sequential": {
        **IMAGES,
        "dataset": "{data}/colour32",
        "model": "cifar-tf",
        "transform": "cifar24",
        "trainer": "sequential",
    },
    "word-lstm": {
        **PLAYS,
        "model": "word-lstm",
        "word-lstm.hidden": 8,
        "word-lstm.embedding": 4,
        "text-unit": "words",
        "text-unroll": 4,
        "text-example": "line",
    },
    "resnet18-gn": {
        **IMAGES,
        "dataset": "{data}/eighteen",
        "model": "resnet18-gn",
        "num-clients": 6,
        "fraction-train": 0.1,
        "batch-size": 2,
        "learning-rate": 0.01,
        "local-epochs": 5,
        "local-steps": 1,
        "eval-every": 0,
        "num-server-rounds": 1,
    },
}

FAULTS = [
    ("client-raises", 8, {"2": "raises"}),
    ("node-raises", 3, {"1": "raises", "2": "raises"}),
    ("client-sends-nan", 8, {"2": "sends nan"}),
    ("client-sends-too-much", 8, {"1": "sends too much", "3": "sends too much"}),
    ("client-lies-about-its-examples", 8, {"2": "holds one more"}),
    ("client-lies-about-its-weight", 8, {"2": "weighs more"}),
    ("client-weighs-nothing", 8, {"2": "weighs nothing"}),
]
"""Name, number of nodes (eight: one a client), and what node 1 does in which round."""

FURTHER: list[tuple[str, Settings, dict[str, str]]] = [
    ("stops-at-a-failure", {"on-failure": "stop"}, {"2": "raises"}),
    ("too-few-replies", {"min-replies": 7}, {"2": "raises"}),
    ("too-few-replies-stop", {"min-replies": 8, "on-failure": "stop"}, {"3": "sends nan"}),
    ("each-sends-nan", {"algorithm": "fedmedian"}, {"2": "sends nan"}),
    (
        "over-selection",
        {"fraction-train": 0.4, "over-selection": 0.5, "num-server-rounds": 5},
        {"1": "slow", "3": "slow"},
    ),
    (
        "over-selection-with-states",
        {
            "fraction-train": 0.4,
            "over-selection": 0.5,
            "num-server-rounds": 5,
            "algorithm": "scaffold",
        },
        {"1": "slow", "3": "slow"},
    ),
    (
        "state-of-a-client-is-damaged",
        {"algorithm": "scaffold", "fraction-train": 1.0},
        dict.fromkeys(("2", "3"), "spoils states"),
    ),
]
"""Runs on four nodes, with further settings."""

PLACES = [
    Run("three-nodes", {**DIGITS}, 3),
    Run("three-nodes-scaffold", {**DIGITS, "algorithm": "scaffold"}, 3),
    Run(
        "nodes-are-clients",
        {**COMMON, "num-clients": 0, "min-nodes": 3, "fraction-train": 0.7, **SMALL},
        3,
    ),
    Run("begun", {**DIGITS, "num-server-rounds": 1}),
    Run(
        "initial-model",
        {**DIGITS, "initial-model": "{after}", "num-server-rounds": 2},
        after="begun",
    ),
]


def resumed(algorithm: str, after: int) -> Run:
    """Return a run on two nodes that is killed in the round after ``after``, and resumed."""
    settings = {**QUADRATIC, "algorithm": algorithm, "checkpoint-every": 1, "fraction-train": 0.5}
    return Run(f"resumed-{algorithm}-{after}", settings, 2, kill_after=after)


RUNS = _runs()

WHOLE = {
    f"resumed-{name}-{after}": f"resumed-{name}-1"
    for name in ("fedavg", "fedadam", "scaffold", "feddyn")
    for after in (2, 3)
}
SAME = WHOLE | {
    "cropped-cifar-sequential": "cropped-cifar",
    "two-threads": "fedavg",
    "three-nodes": "fedavg",
    "three-nodes-scaffold": "scaffold",
}
"""Runs that give another's numbers, within the rounding of sums in another order."""

LOOSE = frozenset(
    {
        *("model", "he", "glorot", "truncated-normal"),
        *("linear-shards", "linear-by-sizes", "label-quantity", "log-normal-sizes"),
        *(
            "mnist-cnn",
            "pfl-cnn",
            "seo-cnn",
            "cropped-cifar",
            "resnet18-gn",
            "normalised-by-client",
        ),
        *("char-lstm", "word-lstm"),
    }
)
"""Runs and variants whose weights PyTorch draws, in float32: there a processor without fused
multiplication and addition rounds otherwise, so they are compared to seven digits."""

COMPILED_RUNS = [
    Run(f"{name}-compiled", {**run.settings, **COMPILED})
    for name in ("fedavg", "scaffold", "momentum-and-clipping", "mnist-cnn")
    for run in VARIANTS[name][:1]
]
"""Runs whose local step is compiled, which takes a while: compared between two commits alone."""

EVERY = [*(run for runs in VARIANTS.values() for run in runs), *RUNS]
BY_NAME = {run.name: run for run in EVERY}
