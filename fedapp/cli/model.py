"""``fedapp predict`` and ``export``, which use the model of a run."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.options import console

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that control a terminal."""
RunDir = Annotated[Path, typer.Argument(help="The directory of a finished run.")]


def predict(
    run_dir: RunDir,
    files: Annotated[
        list[Path], typer.Argument(help="Images, tables (.csv, .parquet) or texts (.txt).")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    length: Annotated[int, typer.Option(min=1, help="Symbols that continue a text.")] = 80,
) -> None:
    """Predict with the model of a run: a class and its probability, a number, or a text to go on."""
    from fedapp.runs.predict import predict as predictions_of
    from fedapp.runs.saved_model import load_model

    predictions = list(predictions_of(load_model(run_dir), files, length))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in predictions], indent=2))
        return
    for each in predictions:
        place = each.file if each.row < 0 else f"{each.file} {each.row}"
        value = each.value if isinstance(each.value, str) else f"{each.value:.6g}"
        if each.probability is not None:  # of a class, whose name a node may have given
            value = f"{CONTROL.sub(' ', value)}  {each.probability:.4f}"
        console.out(f"{place}  {value}")


def export(
    run_dir: RunDir,
    to: Annotated[
        Path | None, typer.Option(help="The folder to write. Default: export in the run's.")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write an ONNX model, too.")] = False,
) -> None:
    """Write the model of a run as a plain state_dict, with the lines of PyTorch that load it."""
    from fedapp.runs.export import export as export_model
    from fedapp.runs.saved_model import load_model

    folder = to or run_dir / "export"
    script = export_model(load_model(run_dir), folder, onnx=onnx)
    console.out(script)
    console.out(folder.absolute())
