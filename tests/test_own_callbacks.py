"""Callbacks of one's own: what they are called with, and what their errors cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedapp.config.read import read_config
from fedapp.errors import CheckpointError, RunError
from fedapp.node import node_setup_of
from fedapp.runs.checkpoint import checkpoint_rounds, drop_checkpoints
from fedapp.runs.directory import read_stored
from fedapp.runs.status import status
from fedapp.studies.sweep.execute import Job, execute_run, execute_together
from fedapp.studies.sweep.identity import Request
from fedapp.studies.sweep.record import RunRecord
from fedapp.studies.sweep.retry import retry
from fedapp.studies.sweep.store import Store
from tests.conftest import SMALL, Run
from tests.in_process import metrics
from tests.own_app import FILES, PYPROJECT, ROWS, app_in, invoke, reload, write

OTHER = (
    ROWS.replace("Rows", "Other").replace('"rows"', '"other"').replace("rows.jsonl", "other.jsonl")
)
FAILS = """
from typing import ClassVar
from fedapp.federation.callback import RunCallback

class Fails(RunCallback):
    name: ClassVar[str] = "fails"

    def on_round(self, result, state):
        if result.round == 2:
            raise OSError("the tracker is away")
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with two callbacks and one that fails, in which this process works."""
    folder = tmp_path / "app"
    write(folder, {**FILES, "other.py": OTHER, "fails.py": FAILS})
    monkeypatch.chdir(folder)
    with app_in(folder):
        yield folder


def rows(folder: Path, name: str = "rows") -> list[list[Any]]:
    """Return the calls that a callback wrote down."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def with_line(line: str) -> str:
    """Return the callback ``Rows`` with one more line at the end of its ``on_round``."""
    end = 'result.metrics["test_accuracy"])\n'
    return ROWS.replace(end, f"{end}        {line}\n")


# ---------------------------------------------------------------------- runs


def test_a_callback_gets_every_round_once_and_the_run_keeps_its_code(app: Path, run: Run) -> None:
    folder = run(
        "run", callbacks="./rows.py, other:Other", num_server_rounds=2, **{"other.label": "o"}
    )
    accuracies = [record["test_accuracy"] for record in metrics(folder)]
    calls = [
        ["start", 0, 0],
        *(["round", t, x] for t, x in enumerate(accuracies)),
        ["end", 2],
        ["close"],
    ]
    assert rows(folder) == calls
    assert rows(folder, "other") == [["o", *call] for call in calls]
    found = json.loads((folder / "config.json").read_text())["found"]
    digest = hashlib.sha256((app / "rows.py").read_bytes()).hexdigest()
    entry = {"name": "rows", "sha256": digest, "files": ["rows.py"]}
    assert found["components"]["callbacks/rows"] == entry
    assert set(found["components"]) == {"callbacks/rows", "callbacks/other"}
    copy = folder / "components" / "callbacks" / "rows" / "rows.py"
    assert copy.read_bytes() == (app / "rows.py").read_bytes()


def test_a_callback_changes_no_number_and_one_that_returns_true_ends_the_run(
    app: Path, run: Run
) -> None:
    write(app, {"rows.py": with_line("return result.round == 2")})
    stopped = run("stopped", callbacks="./rows.py", num_server_rounds=4)
    assert metrics(stopped) == metrics(run("plain", num_server_rounds=4))[:3]
    assert rows(stopped)[-2:] == [["end", 2], ["close"]]


def test_a_callback_that_raises_ends_the_run_after_its_round_and_loses_nothing(
    app: Path, run: Run
) -> None:
    same = {"callbacks": "./fails.py,./rows.py", "num_server_rounds": 4, "checkpoint_every": 0}
    with pytest.raises(RunError) as error:
        run("run", **same)
    folder = app.parent / "run"
    assert str(error.value) == (
        "callback 'fails': on_round raises OSError: the tracker is away (app/fails.py, line 10, in "
        "on_round). Correct the callback and continue from the run's last checkpoint with: "
        f"fedapp run --resume {folder} (callbacks='' leaves all out)"
    )
    assert max(checkpoint_rounds(folder / "checkpoints")) == 2
    assert [call[1] for call in rows(folder) if call[0] == "round"] == [0, 1, 2]
    assert rows(folder)[-1] == ["close"]
    write(app, {"fails.py": FAILS.replace("== 2", "== 5")})
    reload(app)
    assert "Run directory" not in (said := invoke("run", "--resume", str(folder))), said
    assert [call[1] for call in rows(folder) if call[0] == "round"] == [0, 1, 2, 3, 4]
    assert ["start", 2, 0] in rows(folder)
    assert metrics(folder) == metrics(run("plain", num_server_rounds=4))
    copy = folder / "components" / "callbacks" / "fails" / "fails.py"
    assert copy.read_bytes() == (app / "fails.py").read_bytes()
    found = json.loads((folder / "config.json").read_text())["found"]
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    assert found["components"]["callbacks/fails"]["sha256"] == digest


def test_workers_of_a_cluster_get_the_code_of_callbacks(app: Path) -> None:
    """In a sweep each is the server of its runs."""
    from fedapp.runs.own_code import own_code_of

    config = read_config({"callbacks": "./rows.py,./other.py"})
    assert [sorted(code.files) for _, _, code in own_code_of(config)] == [["rows.py"], ["other.py"]]


@pytest.mark.parametrize("method", ["on_start", "on_end", "close"])
def test_an_error_in_the_other_methods(
    app: Path, run: Run, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = "(self)" if method == "close" else "(self, state)"
    code = (
        FAILS.partition("    def")[0]
        + f"    def {method}{arguments}:\n        raise KeyError('x')\n"
    )
    write(app, {"fails.py": code})
    same = {"callbacks": "./fails.py,./rows.py", "num_server_rounds": 2}
    said = f"callback 'fails': {method} raises KeyError: 'x' (app/fails.py, line 9, in {method})"
    if method == "close":
        folder = run("run", **same)
        assert said in caplog.text
    else:
        with pytest.raises(RunError) as error:
            run("run", **same)
        assert str(error.value).startswith(said)
        folder = run("run", **same | {"callbacks": "./rows.py"}, resume=True)
    assert metrics(folder) == metrics(run("plain", num_server_rounds=2))
    assert rows(folder)[-1] == ["close"]


def test_a_callback_that_sets_a_parameter_is_told_what_to_set(app: Path, run: Run) -> None:
    code = FAILS.replace('raise OSError("the tracker is away")', "self.count = 1")
    write(app, {"fails.py": code})
    with pytest.raises(
        RunError, match=r"Instance is frozen .*\. Parameters .* self\._count\. Cor"
    ) as error:
        run("run", callbacks="./fails.py", num_server_rounds=2)
    assert "\n" not in str(error.value)


def test_rounds_after_the_checkpoint_of_a_killed_run_are_reported_again(
    app: Path, run: Run
) -> None:
    """The callback learns so from the round with which it is started."""
    write(
        app, {"rows.py": with_line("if self.label and result.round == 3: raise KeyboardInterrupt")}
    )
    same = {"callbacks": "./rows.py", "num_server_rounds": 4, "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        run("run", **same, **{"rows.label": "first"})
    drop_checkpoints(app.parent / "run" / "checkpoints", 3)
    folder = run("run", **same, resume=True)
    calls = [call[:3] if call[0] == "first" else call[:2] for call in rows(folder)]
    assert calls == [
        *[["first", "start", 0], *(["first", "round", t] for t in range(4)), ["first", "close"]],
        *[["start", 2], ["round", 3], ["round", 4], ["end", 4], ["close"]],
    ]


# ---------------------------------------------------------------------- who needs the code


def test_nodes_do_without_the_code_of_callbacks(app: Path) -> None:
    values = {**SMALL, "callbacks": "./not_there.py", "not-there.x": 1, "algorithm": "./signs.py"}
    setup = node_setup_of(Context(1, 1, {}, RecordDict(), {**values, "signs.scale": 0.5}))
    settings = {key: value for key, value, _ in setup.settings}
    assert (settings["callbacks"], settings["signs.scale"]) == ("", 0.5)
    assert "not-there.x" not in settings


def test_a_run_is_read_without_its_callbacks_and_resumed_with_or_without(
    app: Path, run: Run
) -> None:
    folder = run("run", callbacks="./rows.py", num_server_rounds=2, **{"rows.label": "x"})
    (app / "rows.py").unlink()
    reload(app)
    assert status(folder)[1] == ("state", "finished")
    assert read_stored(folder)[0].callbacks == ""
    assert "report.html" in invoke("report", str(folder))
    longer = ("run", "--resume", str(folder), "num-server-rounds=3")
    said = invoke(*longer)
    assert (
        "a component of this run is not there. callbacks = './rows.py': there is no such file"
        in said
    )
    assert f"A copy of the code that the run used is in {folder / 'components'}." in said
    invoke(*longer, "callbacks=")
    assert metrics(folder) == metrics(run("plain", num_server_rounds=3))


def test_a_resume_takes_the_callbacks_of_the_run_with_their_parameters(app: Path, run: Run) -> None:
    folder = run("run", callbacks="./rows.py", num_server_rounds=1, **{"rows.label": "x"})
    invoke("run", "--resume", str(folder), "num-server-rounds=2")
    calls = [call[:3] for call in rows(folder)]
    assert calls[5:] == [["x", "start", 1], ["x", "round", 2], ["x", "end", 2], ["x", "close"]]
    config, _ = read_stored(folder, callbacks=True)
    assert (config.callbacks, config.options["rows.label"]) == ("./rows.py", "x")


def test_a_callback_that_lost_a_parameter_is_given_anew(app: Path, run: Run) -> None:
    folder = run("run", callbacks="./rows.py", num_server_rounds=1, **{"rows.label": "x"})
    write(
        app,
        {"rows.py": ROWS.replace("label: str", "title: str").replace("self.label", "self.title")},
    )
    reload(app)
    said = invoke("run", "--resume", str(folder), "num-server-rounds=2")
    assert said.startswith("rows.label = 'x': there is no such key.")
    assert said.endswith(f"fedapp run --resume {folder} callbacks='./rows.py'")
    invoke(
        "run", "--resume", str(folder), "num-server-rounds=2", "callbacks=./rows.py", "rows.title=y"
    )
    assert [call[:3] for call in rows(folder)[5:7]] == [["y", "start", 1], ["y", "round", 2]]


def test_an_entry_point_names_a_callback(app: Path, run: Run) -> None:
    entry = '\n[project.entry-points."fedapp.callbacks"]\nrows = "rows:Rows"\n[tool'
    write(app, {"pyproject.toml": PYPROJECT.replace("\n[tool", entry, 1)})
    reload(app)
    assert rows(run("run", callbacks="rows"))[0] == ["start", 0, 0]
    assert not (run("other", **{"rows.label": ""}) / "rows.jsonl").exists()


# ---------------------------------------------------------------------- sweeps


def test_the_runs_of_a_sweep_have_callbacks_and_keep_their_names(app: Path, tmp_path: Path) -> None:
    settings = {key: value for key, value in SMALL.items() if key != "num-server-rounds"}
    plain = Request.of(settings, 2)
    watched = Request.of({**settings, "callbacks": "./rows.py", "rows.label": "a"}, 2)
    assert watched.run == plain.run
    store = Store(tmp_path / "sweep")
    assert execute_run(watched, store, lambda *_: False) is not None
    folder = store.folder(watched.run)
    assert [call[1] for call in rows(folder)] == ["start", *["round"] * 3, "end", "close"]
    longer = Request.of({**settings, "callbacks": "./rows.py", "rows.label": "b"}, 3)
    assert execute_run(longer, store, lambda *_: False) is not None
    assert [call[:3] for call in rows(folder)[6:8]] == [["b", "start", 2], ["b", "round", 3]]


def test_a_sweep_repeats_what_a_callback_ended_from_its_last_round(
    app: Path, tmp_path: Path
) -> None:
    request = Request.of({**SMALL, "callbacks": "./fails.py,./rows.py"}, 4)
    store = Store(tmp_path / "sweep")
    failed = execute_run(request, store, lambda *_: False)
    assert failed is not None
    assert failed.problem.startswith(
        "fedapp.errors.RunError: callback 'fails': on_round raises OSError"
    )
    write(app, {"fails.py": FAILS.replace("== 2", "== 5")})
    reload(app)
    retry(request, store)
    record = execute_run(request, store, lambda *_: False)
    assert record is not None
    assert (record.status, record.last_round) == ("complete", 4)
    folder = store.folder(request.run)
    assert [call[1] for call in rows(folder) if call[0] == "round"] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_runs_in_one_program_have_callbacks_each(app: Path, tmp_path: Path) -> None:
    same = {**SMALL, "trainer": "batched", "program": "record", "callbacks": "./rows.py"}
    requests = [Request.of({**same, "seed": seed}, 2) for seed in (0, 1)]
    store = Store(tmp_path / "sweep")
    ended: list[RunRecord | None] = []
    execute_together([Job(each, lambda *_: False, ended.append) for each in requests], store)
    assert [record is not None and record.status for record in ended] == ["complete"] * 2
    for seed, request in enumerate(requests):
        folder = store.folder(request.run)
        rounds = [["round", t, row["test_accuracy"]] for t, row in enumerate(metrics(folder))]
        assert rows(folder) == [["start", 0, seed], *rounds, ["end", 2], ["close"]]


def test_other_code_of_what_trains_is_refused_as_before(app: Path, run: Run) -> None:
    run("run", algorithm="./signs.py", callbacks="./rows.py", num_server_rounds=1)
    write(app, {"signs.py": FILES["signs.py"] + "\n"})
    reload(app)
    with pytest.raises(CheckpointError, match=r"the code of 'signs' is not that of the run"):
        run("run", algorithm="./signs.py", callbacks="./rows.py", num_server_rounds=2, resume=True)
