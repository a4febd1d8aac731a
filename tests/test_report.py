"""The report of a run as a page: its numbers by hand, from metrics that are made up."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from fedapp.cli.main import app
from fedapp.config.read import read_config
from fedapp.errors import CheckpointError
from fedapp.runs.directory import RunDirectory, read_stored
from fedapp.runs.figures import curve_panels
from fedapp.runs.final_outputs import summarise, write_summary
from fedapp.runs.formatting import aligned, duration, number, setting, size
from fedapp.runs.metrics import read_metrics
from fedapp.runs.page import inline_svg
from fedapp.runs.report import _local_work, write_report
from fedapp.runs.report_page import seconds
from fedapp.runs.status import status
from fedapp.runs.stored_run import round_of_model
from tests.html_pages import Page
from tests.in_process import run
from tests.made_runs import made_run


def report_of(folder: Path) -> tuple[str, Page]:
    config, _ = read_stored(folder)
    directory = RunDirectory(folder)
    summary = write_summary(directory, config)
    write_report(directory, config, summary, round_of_model(directory.model))
    html = (folder / "report.html").read_text()
    return html, Page(html)


def rewrite(folder: Path, **by_key: list) -> None:
    """Set a key of each trained round's metrics."""
    records = read_metrics(folder / "metrics.jsonl")
    for key, values in by_key.items():
        for record, value in zip(records[1:], values, strict=True):
            record[key] = value
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def by_name(table: list[list[str]]) -> dict[str, str]:
    return {row[0]: " | ".join(row[1:]) for row in table}


def test_a_setting_is_shown_as_it_was_given() -> None:
    values = ["tab-1.0", 1.0, 0.5, 20, True]
    assert [setting(value) for value in values] == ["tab-1.0", "1", "0.5", "20", "true"]


def test_only_numbers_below_a_hundred_million_have_all_their_digits() -> None:
    values = [0.61234567, 1234.5, 99_999_999.0, 1e30, -2.5e300]
    shown = ["0.6123", "1234", "99999999", "1e+30", "-2.5e+300"]
    assert [number(value, 4) for value in values] == shown


def test_numbers_are_formatted_and_explained(tmp_path):
    folder = made_run(
        tmp_path / "run",
        [0.1, 0.5, 0.9, 0.8],
        [2.0, 1.0, 0.5, 0.61234567],
        target_accuracy=0.7,
        num_server_rounds=5,
    )
    rewrite(folder, updates=[500.0, 500.0, 500.0])
    _, page = report_of(folder)
    facts = by_name(page.tables[0])
    assert facts["test accuracy"] == "80.00 %of the last evaluated model"
    assert facts["best test accuracy"] == "90.00 % in round 2"
    assert facts["test loss"].startswith("0.6123of")
    assert facts["rounds"] == "3 of 5"
    assert facts["rounds to 70 %"].startswith("1.5where the best accuracy so far crosses")
    assert facts["local updates"].startswith("1,500of a client in a round, u, summed over")
    assert facts["sent to nodes"].startswith(
        "900 Bthe arrays of train requests, and of requests for"
    )
    assert facts["time"] == "6.5 swall clock, all rounds; the median round took 2 s"


@pytest.mark.parametrize(("first", "shown"), [(0.1, "not reached"), (None, "not evaluated")])
def test_a_target_that_was_not_reached(tmp_path, first, shown):
    folder = made_run(tmp_path / "run", [first, None], target_accuracy=0.7)
    assert by_name(report_of(folder)[1].tables[0])["rounds to 70 %"].startswith(f"{shown}where")


def test_a_picture_that_cannot_be_drawn_costs_no_report(tmp_path, caplog):
    folder = made_run(tmp_path / "run", [0.1, 0.2])
    rewrite(folder, client_train_loss=[0.5])  # no dictionary
    assert report_of(folder)[1].tables
    assert "No picture of the clients' losses and updates: AttributeError" in caplog.text


def test_who_took_part(tmp_path):
    folder = made_run(tmp_path / "run", [0.1, 0.2, 0.3, 0.4], num_clients=20)
    rewrite(
        folder,
        clients=[[0, 1], [0, 2], [0, 3, 4]],
        surplus=[[], [], [4]],
        failures=[{}, {"2": "gone"}, {}],
        faults=[{}, {"raised": 1}, {}],
    )
    facts = by_name(report_of(folder)[1].tables[1])
    assert facts["clients a round"].startswith("2.33 of 20")
    assert facts["clients that trained"].startswith("3 of 20")  # 0, 1 and 3
    assert facts["rounds of a client"].startswith("1 to 3of those that trained; the median client")
    assert facts["rounds of a client"].endswith("in 1")
    assert facts["failures"].startswith("raised 1")


def test_no_update_is_used_in_a_round_that_leaves_the_model_as_it_was(tmp_path):
    folder = made_run(tmp_path / "run", [0.1, 0.1, 0.1, 0.2], num_clients=20)
    rewrite(
        folder,
        clients=[[0, 1], [0, 2], [3, 4]],
        replied=[2, 2, 2],
        model_changed=[False, False, True],
    )
    _, page = report_of(folder)
    assert by_name(page.tables[0])["rounds"] == "3, 2 without effect"
    assert dict(status(folder))["rounds"] == "3 of 3, 2 without effect"
    assert by_name(page.tables[1])["clients that trained"].startswith("2 of 20")  # 3 and 4


def test_time_by_part(tmp_path):
    folder = made_run(tmp_path / "run", [0.1, 0.2, 0.3, 0.4])
    parts = {"train": 1.0, "transfer": 0.25, "wait": 0.25, "evaluate": 0.25, "round": 2.0}
    rewrite(folder, seconds=[parts, parts, {**parts, "train": 7.0, "round": 8.0}])
    _, page = report_of(folder)
    head, *rows = page.tables[2]
    assert head == ["part", "total", "share", "median round"]
    facts = {re.sub("(of|for|samp) .*", "", row[0]): row[1:] for row in rows}
    # In all 12.5 s: 0.5 of round 0, 2, 2 and 8.
    assert facts["training"] == ["9 s", "72 %", "1 s"]
    assert facts["transfer"] == ["0.75 s", "6 %", "0.25 s"]
    assert facts["evaluation"] == ["1.25 s", "10 %", "0.25 s"]
    assert rows[-1][1:] == ["0.75 s", "6 %", ""]
    assert "engine inline, nodes 1, device cpu" in " ".join(page.text.split())


def test_changed_settings_come_first_and_the_others_are_folded(tmp_path):
    folder = made_run(
        tmp_path / "run", [0.1, 0.2], algorithm="fedavgm", seed=3, **{"fedavgm.momentum": 0.5}
    )
    html, page = report_of(folder)
    changed = next(table for table in page.tables if table[0] == ["key", "value", "default"])
    assert ["algorithm", "fedavgm", "fedavg"] in changed
    assert ["seed", "3", "0"] in changed
    assert changed[-1] == ["fedavgm.momentum", "0.5", "0.9"]
    keys = {row[0] for row in changed}
    assert keys == {"key", "num-server-rounds", "algorithm", "seed", "fedavgm.momentum"}
    assert html.index("Settings that were changed") < html.index("<details>")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, ["fedapp run --resume {0} num-server-rounds=2",
              "fedapp run {0}/resume.toml resume=false run-dir={0}-again"]),
        ({"nodes": 3}, ["run-dir={0}-again --nodes 3"]),
        ({"workers": 2, "nodes": 2}, ["run-dir={0}-again --workers 2"]),
        ({"engine": "flower"}, ["flwr run . CONNECTION --run-config {0}/resume.toml --stream"]),
        ({"app": "/my app"}, ["cd '/my app' && fedapp run --resume {0}"]),
    ],
)  # fmt: skip
def test_commands_that_resume_and_repeat(tmp_path, found, told):
    folder = made_run(tmp_path / "run", [0.1, 0.2], found=found)
    _, page = report_of(folder)
    for command in told:
        assert command.format(folder) in page.text


PRIVATE = {"algorithm": "dp-fedavg", "dp-fedavg.max-epsilon": 1.0}


@pytest.mark.parametrize(
    ("settings", "model", "told"),
    [
        ({"target_accuracy": 0.7}, "2 of 9", False),  # the target is reached
        ({"target_accuracy": 0.7, "num_server_rounds": 2}, "2", False),
        ({"target_accuracy": 0.7, "num_server_rounds": 2, "eval_every": 9}, "2", True),  # later not
        ({"target_accuracy": 0.9}, "2 of 9", True),  # a callback ended it
        (PRIVATE, "2 of 9", False),  # max-epsilon did
        (PRIVATE, "", True),  # it was stopped, and has no model
        ({**PRIVATE, "num_server_rounds": 2}, "2", True),
    ],
)
def test_no_resume_that_trains_nothing_is_told(tmp_path, settings, model, told):
    folder = made_run(tmp_path / "run", [0.1, 0.2, 0.8], **{"num_server_rounds": 9, **settings})
    save_file({}, folder / "model.safetensors", {"round": model})
    _, page = report_of(folder)
    assert ("fedapp run --resume" in page.text) == told
    assert ("for more rounds" in page.text) == (told and settings.get("num_server_rounds") == 2)
    assert f"run-dir={folder}-again" in page.text


@pytest.mark.parametrize(
    ("settings", "fresh"),
    [
        ({"algorithm": "dp-fedavg"}, ", with other random numbers of its privacy"),
        ({"algorithm": "dp-fedavg", "dp-fedavg.entropy": "seed"}, ""),
        ({}, ""),
    ],
)
def test_the_report_says_if_a_run_cannot_be_repeated(tmp_path, settings, fresh):
    _, page = report_of(made_run(tmp_path / "run", [0.1, 0.2], **settings))
    assert f"The same run again{fresh}:" in page.text


def test_a_run_without_a_checkpoint_that_its_metrics_reach_is_not_to_be_resumed(tmp_path):
    folder = made_run(tmp_path / "run", [0.1, 0.2, 0.8])
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    _, page = report_of(folder)
    assert "Resume" not in page.text
    assert f"run-dir={folder}-again" in page.text


@pytest.mark.parametrize(
    "left", ["checkpoints/round-000001.json", "summary.json", "model.safetensors"]
)
def test_no_report_of_a_run_whose_metrics_are_gone(tmp_path, left):
    """Its summary would be that of a run of no rounds."""
    folder = made_run(tmp_path / "run", [0.1, 0.2], finished=False)
    (folder / left).parent.mkdir(exist_ok=True)
    (folder / left).write_text("{}")
    (folder / "metrics.jsonl").unlink()
    found = CliRunner().invoke(app, ["report", str(folder)])
    assert isinstance(found.exception, CheckpointError)
    assert str(found.exception).startswith(f"{folder / 'metrics.jsonl'} is missing or empty")
    assert (folder / left).read_text() == "{}"
    assert not (folder / "report.html").exists()


def test_a_regression_has_a_curve_of_its_rmse(tmp_path):
    folder = made_run(tmp_path / "run", loss=[9.0, 4.0, 6.25], rmse=[3.0, 2.0, 2.5])
    (label, figure), _ = curve_panels(read_metrics(folder / "metrics.jsonl"), 0.0)
    axes = figure.axes[0]
    assert label == "test RMSE"
    assert list(axes.lines[0].get_ydata()) == [3.0, 2.0, 2.5]
    assert [text.get_text() for text in axes.texts] == ["best 2, round 1"]
    facts = by_name(report_of(folder)[1].tables[0])
    assert facts["test RMSE"].startswith("2.5")
    assert "test accuracy" not in facts


def test_a_run_without_a_score_has_a_curve_of_its_loss_alone(tmp_path):
    folder = made_run(tmp_path / "run", loss=[9.0, 4.0])
    rewrite(folder, train_loss=[5.0])
    [(label, figure)] = curve_panels(read_metrics(folder / "metrics.jsonl"), 0.0)
    assert label == "losses"
    training = figure.axes[0].lines[1]
    assert (list(training.get_ydata()), training.get_marker()) == ([5.0], ".")


def test_a_name_of_data_is_no_formula(tmp_path):
    data = tmp_path / "preis_$_in_$_x"
    data.mkdir()
    report_of(made_run(tmp_path / "run", [0.1, 0.9], dataset=str(data)))
    assert (tmp_path / "run" / "curves.png").exists()


def test_a_run_that_has_not_begun(tmp_path):
    _, page = report_of(made_run(tmp_path / "run", finished=False))
    assert by_name(page.tables[0])["rounds"] == "0 of 1"
    assert "Who took part" not in page.text


@pytest.mark.slow
def test_the_page_of_a_run_is_whole_and_fetches_nothing(tmp_path):
    folder = run(tmp_path / "run", pictures=True, sampler="availability", record_updates=True)
    html = (folder / "report.html").read_text()
    page = Page(html)
    for heading in ("Who was available", "Partition", "Clients' training loss", "Similarity of up"):
        assert f"<h2>{heading}" in html.replace("&#39;", "'")
    assert str(folder) in page.text
    assert html.count('class="light"') == 2  # what holds images stays on white


def test_colours_of_pictures_follow_the_page_unless_they_have_images():
    svg = '<?xml?>\n<svg width="1"><g id="a"><path style="fill: #0072b2"/></g>%s</svg>'
    adapted = inline_svg(svg % '<use xlink:href="#a"/>', "one", 'a "b"')
    assert 'style="fill: var(--c0072b2, #0072b2)"' in adapted
    assert '<g id="one-a">' in adapted
    assert 'xlink:href="#one-a"' in adapted
    assert 'aria-label="a &#34;b&#34;"' in adapted
    assert 'style="fill: #0072b2"' in inline_svg(svg % '<image href="data:,"/>', "two", "")


def test_formats():
    assert [seconds(s) for s in (0, 0.0004, 0.0123, 0.5, 12.3, 300)] == [
        "0 s", "< 1 ms", "12 ms", "0.5 s", "12 s", "5 min",
    ]  # fmt: skip
    assert [duration(s) for s in (0.2, 90, 600, 9000)] == ["< 1 s", "90 s", "10 min", "2.5 h"]
    assert [size(b) for b in (12, 1500, 999_999, 2.5e9)] == ["12 B", "1.5 kB", "1000 kB", "2.5 GB"]
    lines = [("a", "b", "c"), ("long", "its last cell"), ("d", "ee", "f")]
    assert aligned(lines) == ["a     b   c", "long  its last cell", "d     ee  f"]


PRIVACY = {"epsilon": 2.0, "delta": 0.01, "adjacency": "one client"}
RECORDS = [
    {"round": 0, "seconds": {"evaluate": 0.5}, "test_accuracy": 0.1, "test_loss": 2.0},
    {
        "round": 1,
        "seconds": {"round": 1.0},
        "test_accuracy": 0.9,
        "test_loss": 1.0,
        "updates": 5.0,
        "bytes_down": 100,
        "bytes_up": 30,
        "failures": {"3": "raised", "4": "late"},
    },
    {
        "round": 2,
        "seconds": {"round": 4.0},
        "test_accuracy": 0.9,
        "test_loss": 0.75,
        "updates": None,
        "bytes_down": 100,
        "bytes_up": 0,
        "failures": {"3": "raised"},
    },
    {
        "round": 3,
        "seconds": {"round": 2.0},
        "updates": 7.0,
        "bytes_down": 50,
        "bytes_up": 20,
    },
]
"""Of three rounds: nobody replied in the second, and the third is not evaluated."""


def test_a_loss_that_is_not_finite_is_none_in_the_summary():
    """And not that of an earlier round beside the last accuracy."""
    scores = [{"test_loss": 2.3, "test_rmse": 1.5}, {"test_loss": None, "test_rmse": None}]
    records = [{**row, **more} for row, more in zip(RECORDS, scores, strict=False)]
    found = summarise(records, read_config({}))
    assert (found["test_loss"], found["test_rmse"]) == (None, None)
    last = {**RECORDS[1], "test_accuracy": None}
    found = summarise([RECORDS[0], last], read_config({}))
    assert (found["test_accuracy"], found["best_test_accuracy"]) == (None, 0.1)


def test_a_summary_by_hand():
    found = summarise(RECORDS, read_config({"target-accuracy": 0.5}), PRIVACY)
    assert found == {
        "rounds": 3,
        "test_accuracy": 0.9,
        "test_loss": 0.75,
        "best_test_accuracy": 0.9,
        "best_round": 1,  # the first of equal ones
        "target_accuracy": 0.5,
        "rounds_to_target": 0.5,
        "updates": 12.0,
        "epsilon": 2.0,
        "delta": 0.01,
        "adjacency": "one client",
        "bytes_down": 250,
        "bytes_up": 50,
        "seconds": 7.5,
        "seconds_a_round_median": 2.0,
        "failures": 3,  # of clients, not of rounds
    }


@pytest.mark.parametrize(("count", "accuracy"), [(0, None), (1, 0.1)])
def test_a_summary_of_no_trained_round_has_no_numbers_of_training(count, accuracy):
    found = summarise(RECORDS[:count], read_config({}))
    assert (found["rounds"], found["updates"], found["failures"]) == (0, 0.0, 0)
    assert found["seconds_a_round_median"] is found["rounds_to_target"] is None
    assert "epsilon" not in found
    assert found["test_accuracy"] == accuracy


def test_the_local_work_has_the_decay_of_e_and_the_growth_of_b():
    decays = {"local-epochs-decay": 0.5, "batch-size-growth": 2.0}
    config = read_config({"local-epochs": 5, "batch-size": 10, **decays})
    assert _local_work(config) == "E = 5 · 0.5^(t - 1), B = 10 · 2^(t - 1)"
