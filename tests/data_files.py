"""Small data sets on disk for the tests of the readers."""

from __future__ import annotations

import io
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
"""Six images of 5 rows, 4 columns, 3 channels."""


def png(pixels: np.ndarray) -> dict[str, object]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def write_parquet(
    folder: Path, splits: dict[str, dict[str, list]], features: dict[str, object] | None = None
) -> Path:
    """Write `folder/<split>.parquet`, with Hugging Face's feature metadata where given."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, columns in splits.items():
        kinds = datasets.Features(features) if features else None
        table = datasets.Dataset.from_dict(columns, kinds)
        metadata = table.features.arrow_schema.metadata
        pq.write_table(
            table.data.table.replace_schema_metadata(metadata), folder / f"{split}.parquet"
        )
    return folder


def image_features(**further: object) -> dict[str, object]:
    return {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog"]),
        **further,
    }


def image_splits(train: int = 4, test: int = 2) -> dict[str, dict[str, list]]:
    pictures = [png(pixels) for pixels in PIXELS]
    labels = [0, 1, 1, 0, 1, 0]
    return {
        "train": {"image": pictures[:train], "label": labels[:train]},
        "test": {"image": pictures[train : train + test], "label": labels[train : train + test]},
    }


def write_image_folder(folder: Path, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Write `folder/<split>/<class>/0.png`, one image for each class and split."""
    for number, split in enumerate(("train", "test")):
        for index, name in enumerate(classes):
            path = folder / split / name / "0.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(PIXELS[2 * number + index]).save(path)
    return folder
