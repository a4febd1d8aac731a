"""Texts with one label each: from a CSV file to a network that learns."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Run
from tests.in_process import metrics


def write_texts(folder: Path) -> Path:
    """Write texts whose label is whether they are questions: 60 to train on, 20 to test."""
    folder.mkdir()
    words = ["one", "two", "three", "four", "five"]
    texts = [
        f"is {a} {b}?,1" if (i + j) % 2 else f"so {a} {b}.,0"
        for i, a in enumerate(words)
        for j, b in enumerate(words)
    ]
    for name, count in (("train", 60), ("test", 20)):
        rows = (texts * 3)[:count]
        (folder / f"{name}.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return folder


def test_a_sequence_model_learns_labels(run: Run, tmp_path: Path) -> None:
    folder = run(
        dataset=str(write_texts(tmp_path / "texts")),
        label_key="label",
        model="char-lstm",
        text_unroll=16,
        num_clients=3,
        fraction_train=1.0,
        num_server_rounds=4,
        local_epochs=3,
        batch_size=5,
        learning_rate=0.5,
        eval_every=0,
        precision="float32",
        **{"char-lstm.hidden": 16, "char-lstm.layers": 1},
    )
    record = metrics(folder)[-1]
    assert record["test_accuracy"] > 0.9
