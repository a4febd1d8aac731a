"""The examples of the embedded data sets, and of generated ones as they are read: ``datasets.json``.

A data set is pinned by the shape and type of each array and by its norm and projections: its floats may
differ in their last bit between machines. The splits over clients are in
``tests/test_partition_golden.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedapp.config.read import read_config
from fedapp.data.load import load_dataset
from tests.golden.driver import DATA, projected, write_data

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits"},
    "quadratic": {"dataset": "quadratic", "model": "quadratic"},
    "quadratic, unequal": {
        "dataset": "quadratic",
        "model": "quadratic",
        "quadratic.clients": 7,
        "quadratic.size-ratio": 3,
        "quadratic.curvature": 0.5,
        "quadratic.noise": 0.5,
    },
    "skewed-digits": {"dataset": "skewed-digits"},
    "skewed-digits, little": {
        "dataset": "skewed-digits",
        "skewed-digits.clients": 6,
        "skewed-digits.skew": 0.1,
    },
    "grey28": {"dataset": "{data}/grey28", "test-fraction": 0.0},
    "colour32": {"dataset": "{data}/colour32"},
    "plays": {"dataset": "{data}/plays", "text-unroll": 12},
    "plays in lines of words": {
        "dataset": "{data}/plays",
        "text-unit": "words",
        "text-example": "line",
        "text-unroll": 4,
    },
}


def found(folder: Path) -> dict[str, Any]:
    """Return what is pinned of each data set."""
    for name in DATA:
        write_data(name, folder / "data")
    pinned = {}
    for name, settings in SETTINGS.items():
        place = str(settings["dataset"]).replace("{data}", str(folder / "data"))
        cache = {"data-cache": str(folder / "cache")}
        data = load_dataset(read_config({**settings, "dataset": place, **cache}))
        arrays = {}
        for split, examples in (("train", data.train), ("test", data.test)):
            columns = {f"{split}.{column}": ids for column, ids in examples.groups.items()}
            arrays |= {f"{split}.inputs": examples.inputs, f"{split}.targets": examples.targets}
            arrays |= columns
        pinned[name] = {
            "fingerprint": data.fingerprint if "/" not in place else "of its files",
            "arrays": {key: _pinned(values) for key, values in sorted(arrays.items())},
        }
    return pinned


def _pinned(values: Any) -> dict[str, Any]:
    norm, projections = projected({"": values})
    shape = f"{values.dtype} {list(values.shape)}"
    return {"array": shape, "norm": norm, "projections": projections}
