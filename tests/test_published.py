"""What ``docs`` holds of results: small files, each made from the results and their records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedapp.cli.generate import RESULTS, main, result_pages
from fedapp.studies.papers.catalogue import all_experiments
from fedapp.studies.papers.cell_queue import seeds_done
from fedapp.studies.papers.figures.draw import draw
from fedapp.studies.papers.options import ReproduceOptions
from fedapp.studies.papers.reproduce import prepare, split_name
from fedapp.studies.papers.schema import Comparison, ScaleName
from fedapp.studies.papers.stored import read_results, results_of
from fedapp.studies.sweep.scheduler import SchedulerOptions
from tests.paper_results import EXPERIMENTS, RECORDS, setup

DOCS = RESULTS.parent
LARGEST = 8_000_000
"""Bytes of all files of the documentation, of which records of runs are a third."""


def test_the_documentation_is_small() -> None:
    built = DOCS / "_build"
    files = [path for path in DOCS.rglob("*") if path.is_file() and built not in path.parents]
    assert sum(path.stat().st_size for path in files) < LARGEST


def test_results_hold_one_format_of_each_and_no_smoke() -> None:
    names = {path.relative_to(RESULTS) for path in RESULTS.rglob("*") if path.is_file()}
    assert {name.suffix for name in names} <= {".md", ".json", ".png", ".parquet", ""}
    assert not [name for name in names if name.stem == "smoke"]


@pytest.mark.slow
def test_every_page_is_of_results_and_every_result_has_a_page() -> None:
    by_hand = {path for path in RESULTS.glob("*.md") if path.name != "index.md"}
    texts = {path: path.read_text() for path in set(RESULTS.rglob("*.md")) - by_hand}
    assert texts == result_pages(RESULTS), "run `make generate`"
    for name in all_experiments():
        for results in results_of(RESULTS, name, RECORDS):
            drawn = (RESULTS / name / f"{results.scale}.png").exists()
            assert drawn == (f"]({results.scale}.png)" in (RESULTS / name / "index.md").read_text())


def test_second_hyper_parameters_on_cifar_are_the_best_of_mnist() -> None:
    """As the page says; of those that are alone in their algorithm's options there."""
    tuned, own = (EXPERIMENTS[f"algorithms-{name}"] for name in ("mnist-shards", "cifar-dirichlet"))
    best = read_results(RESULTS, "algorithms-mnist-shards", "cpu")
    assert best is not None
    assert isinstance(tuned, Comparison)
    assert isinstance(own, Comparison)
    keys = {name: list(each.options) for name, each in tuned.algorithms.items() if each.options}
    chosen = {name: [best.cells[name].chosen[key] for key in each] for name, each in keys.items()}
    fixed = {
        name: [own.algorithms[name].settings[key] for key in each] for name, each in keys.items()
    }
    assert fixed == chosen
    assert len(keys) == 15


def test_a_misspelled_option_of_generate_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedapp.cli.generate.targets", dict)
    with pytest.raises(SystemExit):
        main(["--chek"])
    assert "[--check]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        pytest.param("algorithms-mnist-shards", "cpu", marks=pytest.mark.slow),
        ("mcmahan-fig1", "full"),
        pytest.param("mcmahan-fig7", "cpu", marks=pytest.mark.slow),
        ("seo-fig11", "full"),
        pytest.param("seo-fig12", "cpu", marks=pytest.mark.slow),
        ("seo-sharpness", "cpu"),
    ],
)
def test_a_figure_is_drawn_from_results_and_records(name, scale, tmp_path: Path) -> None:
    """Up to what another version of matplotlib draws otherwise."""
    experiment = EXPERIMENTS[name]
    [results] = [each for each in results_of(RESULTS, name, RECORDS) if each.scale == scale]
    path = draw(experiment, results, setup(experiment, scale), tmp_path / scale)
    assert path is not None
    with Image.open(path) as now, Image.open(RESULTS / name / f"{scale}.png") as before:
        assert now.mode == before.mode == "P"
        assert now.size == before.size
        pixels, others = (np.asarray(image.convert("RGB"), float) for image in (now, before))
    assert np.abs(pixels - others).mean() < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["cpu", "narrow", "normalised", "full"])
def test_results_have_every_seed_that_the_records_have(
    scale: ScaleName, real_data: Path, tmp_path: Path
) -> None:
    """Also those of runs that another experiment made; sharpness is of models, which none has."""
    experiments = EXPERIMENTS.keys() - {"seo-sharpness"}
    names = [name for name in experiments if (RESULTS / name / f"{scale}.json").exists()]
    options = ReproduceOptions(
        scale, real_data, tmp_path, tmp_path, SchedulerOptions(jobs=1), {}, recorded=(RESULTS,)
    )
    work = prepare(names, options)
    published = {name: read_results(RESULTS, name, scale) for name in names}
    behind = []
    for plan, cell in work.planned.items():
        experiment, label = split_name(plan)
        results = published[experiment]
        assert results is not None
        seeds = len(results.cells[label].runs) if label in results.cells else 0
        done = seeds_done(work, plan)
        if done > seeds:
            behind.append(f"{plan}: {done} of {len(cell.seeds)} seeds, and {seeds} are published")
    assert behind == []
