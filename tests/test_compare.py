"""``fedapp compare``, and ``fedapp status`` of a folder: numbers by hand, of runs that are made up."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedapp.cli.main import app
from fedapp.errors import CheckpointError, ConfigError
from fedapp.runs.directory import RunDirectory
from fedapp.runs.lock import locked
from fedapp.studies.compare.comparison import compare
from fedapp.studies.compare.figure import MAX_STYLES, styles_of
from fedapp.studies.compare.listing import list_runs
from fedapp.studies.compare.page import number_rows
from fedapp.studies.compare.runs import find_runs, names_of
from tests.html_pages import Page
from tests.in_process import run
from tests.made_runs import made_run

SLOW = [0.1, 0.3, 0.5, 0.9]
FAST = [0.1, 0.9, 0.8]


def two(folder: Path, **settings: object) -> Path:
    """Make a slow and a fast run with different learning rates in ``folder``."""
    made_run(folder / "slow", SLOW, [2.0, 1.5, 1.0, 0.5], learning_rate=0.1, **settings)
    made_run(folder / "fast", FAST, [2.0, 0.5, 0.75], learning_rate=0.2, **settings)
    return folder


def invoke(*words: object) -> str:
    """Return what a command that succeeds says."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_numbers_by_hand(tmp_path):
    slow, fast = compare([two(tmp_path)], 0.7).runs
    assert (slow.name, fast.name) == ("slow", "fast")
    assert slow.rounds_to_target == 2.5  # half way from 0.5 in round 2 to 0.9 in round 3
    assert fast.rounds_to_target == pytest.approx(0.75)  # 0.6 of 0.8 beyond 0.1
    assert (slow.final, slow.best, slow.best_round) == (0.9, 0.9, 3)
    assert (fast.final, fast.best, fast.best_round) == (0.8, 0.9, 1)
    assert (slow.bytes_down, slow.bytes_up, slow.bytes) == (900, 300, 1200)
    assert (slow.seconds, fast.seconds) == (6.5, 4.5)  # 0.5 for round 0 and 2 for each other
    assert (slow.rounds, slow.planned, slow.state) == (3, 3, "finished")
    assert slow.curves["test_loss"].values == [2.0, 1.5, 1.0, 0.5]
    assert slow.curves["test_accuracy"].rounds == [0, 1, 2, 3]


def test_of_rmse_the_least_is_best(tmp_path):
    made_run(tmp_path / "a", rmse=[4.0, 1.0, 2.0], seed=1)
    made_run(tmp_path / "b", rmse=[4.0, 3.0, 3.0], seed=2)
    first, second = compare([tmp_path], 0.5).runs
    assert (first.metric, first.final, first.best, first.best_round) == ("test_rmse", 2.0, 1.0, 1)
    assert (second.best, second.best_round) == (3.0, 1)
    assert first.rounds_to_target is None
    assert compare([tmp_path], 0.5).notes == [
        "No run has a test accuracy: none can reach the target."
    ]


def test_values_that_are_not_finite(tmp_path):
    made_run(tmp_path / "a", [0.1, 0.4, None], [2.0, 1.0, None], seed=1)
    made_run(tmp_path / "b", [0.1, 0.2, 0.3], [2.0, 1.9, 1.8], seed=2)
    first = compare([tmp_path], 0.3).runs[0]
    assert (first.final, first.best, first.best_round) == (None, 0.4, 1)
    assert first.rounds_to_target == pytest.approx(2 / 3)
    rows = invoke("compare", tmp_path, "--to", tmp_path).splitlines()
    assert any(re.search(r"seed 1 .* 40.00 % \(1\) .* not finite", row) for row in rows)


def test_the_target_is_that_of_all_runs_or_none(tmp_path):
    assert compare([two(tmp_path / "none")]).target is None
    same = two(tmp_path / "same", target_accuracy=0.85)
    assert compare([same]).target == 0.85
    assert compare([same], 0.5).target == 0.5
    other = made_run(tmp_path / "other", SLOW, target_accuracy=0.8)
    assert compare([same, other]).target is None


@pytest.mark.parametrize(
    ("target", "instead"),
    [
        ("95", "95 % is 0.95"),
        ("1.5", "1.5 % is 0.015"),
        ("-1", "95 % is 0.95"),
        ("0", "95 % is 0.95"),
        ("nan", "95 % is 0.95"),
    ],
)
def test_a_target_is_a_share(tmp_path, target, instead):
    result = CliRunner().invoke(app, ["compare", str(tmp_path), "--target", target])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == (
        f"--target {target}: must be a share of the test examples, above 0 and at most 1; {instead}."
    )


def test_runs_are_found_below_a_folder_by_name_and_each_once(tmp_path):
    for name in ("b/run10", "b/run9", "a", "b/.hidden", "a/inside"):
        made_run(tmp_path / name, SLOW)
    runs = find_runs(tmp_path)
    assert [str(run.relative_to(tmp_path)) for run in runs] == ["a", "b/run9", "b/run10"]
    compared = compare([tmp_path / "b" / "run9", tmp_path / "a", tmp_path / "b"]).runs
    assert [run.name for run in compared] == ["run9", "a", "run10"]
    assert names_of([Path("/x/a/run"), Path("/x/b/run")]) == ["a/run", "b/run"]


def test_settings_that_differ_come_with_their_parameters_and_those_of_execution_last(tmp_path):
    made_run(tmp_path / "a", SLOW, algorithm="fedavg", seed=3)
    made_run(tmp_path / "b", SLOW, algorithm="fedprox", **{"fedprox.mu": 0.5}, seed=3, threads=2)
    comparison = compare([tmp_path])
    assert comparison.differing == ["algorithm", "fedprox.mu", "threads"]
    assert [run.settings["fedprox.mu"] for run in comparison.runs] == [None, 0.5]
    assert comparison.shared["seed"] == 3
    assert "algorithm" not in comparison.shared
    assert "run-dir" not in comparison.shared


def test_a_parameter_at_its_default_that_other_runs_do_not_have_is_no_difference(tmp_path):
    made_run(tmp_path / "a", SLOW)
    made_run(tmp_path / "b", SLOW, algorithm="fedprox")
    assert compare([tmp_path]).differing == ["algorithm"]


def test_labels_have_no_more_settings_than_tell_runs_apart(tmp_path):
    for algorithm, rate in (("fedavg", 0.1), ("fedavg", 0.2), ("fedprox", 0.2), ("fedprox", 0.1)):
        made_run(
            tmp_path / f"{algorithm}{rate}",
            SLOW,
            algorithm=algorithm,
            learning_rate=rate,
            momentum=rate,
        )
    assert [run.label for run in compare([tmp_path]).runs] == [
        "fedavg, learning-rate 0.1",
        "fedavg, learning-rate 0.2",
        "fedprox, learning-rate 0.1",
        "fedprox, learning-rate 0.2",
    ]


def test_runs_with_the_same_settings_are_told_apart_by_their_names(tmp_path):
    made_run(tmp_path / "a", SLOW, seed=1)
    made_run(tmp_path / "b", FAST, seed=1, num_server_rounds=3)
    comparison = compare([tmp_path])
    assert comparison.differing == []
    assert [run.label for run in comparison.runs] == ["a", "b"]
    made_run(tmp_path / "c", FAST, seed=2, num_server_rounds=3)
    assert [run.label for run in compare([tmp_path]).runs] == ["seed 1 (a)", "seed 1 (b)", "seed 2"]


def test_one_name_with_other_code_or_data_is_a_difference(tmp_path):
    def own(digest: str, fingerprint: str) -> dict[str, object]:
        code = {"name": "signs", "sha256": digest * 16, "files": ["signs.py"]}
        return {"components": {"algorithm": code}, "fingerprint": fingerprint}

    for name, digest, data in (("a", "abcd", "one"), ("b", "ef01", "two"), ("c", "ef01", "one")):
        made_run(tmp_path / name, SLOW, found=own(digest, data))
        config = json.loads((tmp_path / name / "config.json").read_text())
        config["config"]["algorithm"] = "./signs.py"
        config["config"]["signs.scale"] = 2.0
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    comparison = compare([tmp_path])  # signs.py is nowhere
    by_name = {run.name: list(run.settings.values()) for run in comparison.runs}
    assert comparison.differing == ["algorithm", "dataset"]
    assert by_name == {
        "a": ["./signs.py@abcdabcdabcd", "digits@one"],
        "b": ["./signs.py@ef01ef01ef01", "digits@two"],
        "c": ["./signs.py@ef01ef01ef01", "digits@one"],
    }
    assert "The runs are of different data, and so are their test examples." in comparison.notes


def test_the_same_data_in_another_folder_is_no_difference(tmp_path):
    for name in ("a", "b"):
        made_run(tmp_path / name, SLOW)
        config = json.loads((tmp_path / name / "config.json").read_text())
        config["config"]["dataset"] = f"/moved/{name}"
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    assert compare([tmp_path]).differing == []


def test_classification_and_regression_share_rounds_bytes_and_seconds(tmp_path):
    two(tmp_path)
    made_run(
        tmp_path / "house",
        loss=[9.0, 4.0],
        rmse=[3.0, 2.0],
        seed=1,
        found={"fingerprint": "houses"},
    )
    comparison = compare([tmp_path], 0.85)
    assert [metric.key for metric in comparison.metrics] == ["test_accuracy", "test_rmse"]
    assert comparison.notes[0].startswith(
        "The runs have different tasks: test accuracy of 2 runs, test RMSE of 1 run. What they share is"
    )
    page = Page(written(comparison_folder(tmp_path, tmp_path, "--target", "0.85")))
    head, *rows = page.tables[1]
    assert head == ["run", "rounds to 85 %", "best (round)", "final", "rounds", "bytes", "time"]
    by_label = {row[0]: row[1:] for row in rows}
    assert by_label["digits@houses, learning-rate 0.2"] == [
        "no accuracy", "test RMSE 2 (1)", "test RMSE 2", "1", "400 B", "2 s",
    ]  # fmt: skip
    assert "test RMSE of 1 of the 3 runs" in page.text
    assert "losses, which are of different functions, are not" in page.text


def test_losses_of_different_tasks_are_not_drawn_together(tmp_path):
    made_run(tmp_path / "a", [0.1, 0.9], [2.0, 1.0])
    made_run(tmp_path / "b", loss=[9.0, 4.0], seed=1)
    assert [metric.key for metric in compare([tmp_path]).metrics] == ["test_accuracy"]


def comparison_folder(tmp_path: Path, *words: object) -> Path:
    invoke("compare", *words, "--to", tmp_path / "out")
    return tmp_path / "out"


def written(folder: Path) -> str:
    return (folder / "comparison.html").read_text()


def test_the_page(tmp_path):
    folder = comparison_folder(tmp_path, two(tmp_path / "runs"), "--target", "0.95")
    html = written(folder)
    page = Page(html)
    settings, numbers, shared = page.tables
    assert settings == [
        ["", "learning-rate", "num-server-rounds", "run"],
        ["", "0.1", "3", "slow"],
        ["", "0.2", "2", "fast"],
    ]
    assert numbers == [
        ["run", "rounds to 95 %", "best test accuracy (round)", "final test accuracy", "rounds",
         "bytes", "time"],
        ["learning-rate 0.1", "not reached", "90.00 % (3)", "90.00 %", "3", "1.2 kB", "6 s"],
        ["learning-rate 0.2", "not reached", "90.00 % (1)", "80.00 %", "2", "800 B", "4 s"],
    ]  # fmt: skip
    assert ["model", "2nn"] in shared
    assert html.index("Settings that differ") < html.index("<figure") < html.index("<h2>Numbers")
    assert html.count("<figure>") == 2
    assert f"fedapp compare {tmp_path / 'runs'} --target 0.95" in page.text
    assert "<strong>90.00 %</strong>" in html  # the better of the two final accuracies
    assert "<strong>90.00 % (3)</strong>" not in html  # both are as good
    for rule in ("prefers-color-scheme: dark", "overflow-x: auto", "width=device-width"):
        assert rule in html
    assert (folder / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "comparison.svg").exists()


def test_names_are_escaped(tmp_path):
    for name in ("<b>$x$", "_a&b"):
        made_run(tmp_path / "runs" / name, SLOW)
    html = written(comparison_folder(tmp_path, tmp_path / "runs"))
    assert "&lt;b&gt;$x$" in html
    Page(html)


def test_the_same_runs_give_the_same_files(tmp_path):
    two(tmp_path / "runs")
    contents = []
    for _ in range(2):
        folder = comparison_folder(tmp_path, tmp_path / "runs")
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert contents[0] == contents[1]


def test_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    two(tmp_path / "runs")
    said = json.loads(invoke("compare", "runs", "--json", "--target", "0.7"))
    assert list(said) == ["target", "differing", "shared", "runs", "notes", "left_out"]
    assert said["target"] == 0.7
    assert said["differing"] == ["learning-rate", "num-server-rounds"]
    assert said["runs"][0] == {
        "name": "slow",
        "path": str(tmp_path / "runs" / "slow"),
        "label": "learning-rate 0.1",
        "state": "finished",
        "settings": {"learning-rate": 0.1, "num-server-rounds": 3},
        "rounds": 3,
        "planned": 3,
        "metric": "test_accuracy",
        "final": 0.9,
        "best": 0.9,
        "best_round": 3,
        "rounds_to_target": 2.5,
        "bytes_down": 900,
        "bytes_up": 300,
        "seconds": 6.5,
        "curves": {
            "test_accuracy": {"rounds": [0, 1, 2, 3], "values": SLOW},
            "test_loss": {"rounds": [0, 1, 2, 3], "values": [2.0, 1.5, 1.0, 0.5]},
        },
    }
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]  # no page


def test_a_run_that_cannot_be_read_is_left_out_and_said(tmp_path):
    two(tmp_path)
    bad = made_run(tmp_path / "bad", SLOW)
    (bad / "metrics.jsonl").write_bytes(b'\xff{"no": 1}\n{"round": 1, "seconds": {}}\n')
    result = CliRunner().invoke(app, ["compare", str(tmp_path), "--to", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert f"Error: left out: {bad / 'metrics.jsonl'}, line 1, is damaged" in result.stderr
    assert "Left out: " in Page(written(tmp_path / "out")).text
    (tmp_path / "waits").mkdir()
    (tmp_path / "waits" / "log.jsonl").write_text("")
    waits = str(tmp_path / "waits")
    assert compare([tmp_path]).left_out[waits] == f"{waits}: ended before its first round"
    only = [tmp_path / "slow", bad]
    with pytest.raises(CheckpointError, match=r"one run that can be read.*\n.*line 1, is damaged"):
        compare(only)


def test_runs_that_go_on_have_stopped_or_have_not_begun_are_compared(tmp_path):
    made_run(tmp_path / "a", SLOW, seed=1, num_server_rounds=9, finished=False)
    made_run(tmp_path / "b", FAST, seed=2, num_server_rounds=9, finished=False)
    made_run(tmp_path / "c", seed=3, num_server_rounds=9, finished=False)
    with locked(RunDirectory(tmp_path / "a")):
        comparison = compare([tmp_path], 0.5)
    assert comparison.notes == [
        "seed 1 still runs, after round 3 of 9.",
        "seed 2 has stopped, after round 2 of 9.",
        "seed 3 has stopped, after round 0 of 9.",
    ]
    begun = comparison.runs[2]
    assert (begun.metric, begun.final, begun.rounds_to_target, begun.curves) == ("", None, None, {})
    Page(written(comparison_folder(tmp_path, tmp_path)))


def test_a_run_without_evaluation_says_so(tmp_path):
    for seed in (1, 2):
        folder = made_run(tmp_path / f"{seed}", [None, None], seed=seed)
        lines = (folder / "metrics.jsonl").read_text().replace('"test_accuracy": null', '"x": 1')
        (folder / "metrics.jsonl").write_text(lines)
    comparison = compare([tmp_path])
    assert comparison.notes == [
        "seed 1: no round was evaluated.",
        "seed 2: no round was evaluated.",
    ]
    assert comparison.metrics == []
    rows = number_rows(compare([tmp_path], 0.5))
    assert [row[0].text for row in rows] == ["not evaluated"] * 2
    assert "<figure" not in written(comparison_folder(tmp_path, tmp_path))


def test_of_many_runs_the_best_have_lines_of_their_own(tmp_path):
    number = MAX_STYLES + 2
    for seed in range(number):
        made_run(tmp_path / f"{seed}", [0.1, 0.2 + seed / 100], seed=seed)
    comparison = compare([tmp_path])
    styles = styles_of(comparison.runs)
    assert [style is None for style in styles] == [True, True] + [False] * MAX_STYLES
    assert len({style for style in styles if style}) == MAX_STYLES
    html = written(comparison_folder(tmp_path, tmp_path))
    assert "The best 12 runs have lines of their own; the other 2 are pale." in " ".join(
        Page(html).text.split()
    )


def test_the_status_of_a_folder_is_a_line_a_run(tmp_path):
    two(tmp_path)
    resumable = made_run(tmp_path / "stopped", [0.1, 0.2], num_server_rounds=9)
    (resumable / "summary.json").unlink()
    made_run(tmp_path / "lost", [0.1, 0.2], num_server_rounds=9, finished=False)
    made_run(tmp_path / "house", rmse=[3.0, 2.0, 2.5], seed=5)
    bad = made_run(tmp_path / "bad", SLOW)
    (bad / "config.json").write_text("{")
    (tmp_path / "waits").mkdir()
    (tmp_path / "waits" / "log.jsonl").write_text("")
    head, *lines = list_runs(tmp_path)
    assert head == ("run", "state", "rounds", "last", "best", "differs in")
    by_name = {line[0]: line[1:] for line in lines}
    assert list(by_name) == sorted(by_name)
    rate = "learning-rate 0.1, seed 0"
    assert by_name["slow"] == ("finished", "3 of 3", "accuracy 90.00 %", "90.00 %", rate)
    assert by_name["fast"][:3] == ("finished", "2 of 2", "accuracy 80.00 %")
    assert by_name["stopped"][:2] == ("stopped, resumable from 1", "1 of 9")
    assert by_name["lost"][:2] == ("stopped", "1 of 9")
    assert by_name["house"][2:4] == ("RMSE 2.5", "2")
    assert by_name["bad"][0].startswith(f"damaged: {bad / 'config.json'} is damaged")
    assert by_name["waits"] == ("ended before its first round",)
    with locked(RunDirectory(tmp_path / "waits")), locked(RunDirectory(tmp_path / "slow")):
        states = {line[0]: line[1] for line in list_runs(tmp_path)}
    assert (states["waits"], states["slow"]) == ("waiting for nodes", "running")
    said = invoke("status", tmp_path).splitlines()
    assert len(said) == len(lines) + 1
    assert said[0].split() == ["run", "state", "rounds", "last", "best", "differs", "in"]


def test_runs_that_were_made_by_running(tmp_path):
    for seed in (1, 2):
        run(tmp_path / "runs" / f"seed{seed}", seed=seed)
    said = invoke("compare", tmp_path / "runs", "--to", tmp_path)
    assert re.search(r"seed 1 +\d+\.\d\d % \(\d\) +\d+\.\d\d % +3 ", said)
    assert invoke("status", tmp_path / "runs").count("finished") == 2
    for command in ("compare", "status"):
        assert f" {command} " in invoke("--help")
