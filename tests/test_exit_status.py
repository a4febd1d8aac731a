"""Whatever was not done ends with a status other than 0, and with the reason in the last line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from benchmarks import __main__ as benchmarks
from deploy import demo, processes
from deploy.federation import ROOT, Federation
from fedapp.cli import main as cli
from tests.in_process import SMALL

FEW = [f"{key}={value}" for key, value in SMALL.items()]


def fedapp(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return a command's exit status and what it said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedapp", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    said = capfd.readouterr()
    code = ended.value.code or 0
    assert isinstance(code, int)
    return code, (said.err if code else said.out).strip()


def test_a_run_in_which_every_round_fails_ends_with_the_reason(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """For Flower, too, the run failed: its ServerApp raised."""
    folder = tmp_path / "run"
    settings = ["learning-rate=1e30", "num-server-rounds=2", f"run-dir={folder}"]
    code, said = fedapp(capfd, "run", *FEW, *settings)
    assert code == 2
    last = said.splitlines()[-1]
    assert last.startswith("Error: No round changed the model: FloatingPointError")
    assert last.endswith(f"fedapp status {folder}")


@pytest.mark.process
def test_a_sweep_with_a_run_that_failed_ends_with_the_reason(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that diverged is a result."""
    monkeypatch.chdir(tmp_path)
    grid = ["learning-rate=1e30", "num-clients=[10,20000]", "num-server-rounds=1"]
    runs = ["--jobs", "1", "--runs", str(tmp_path / "runs")]
    code, said = fedapp(capfd, "sweep", *FEW, *grid, *runs)
    assert code == 1
    last = said.splitlines()[-1]
    problems = [
        row["problems"] for row in json.loads((tmp_path / "sweep.json").read_text())["rows"]
    ]
    assert "diverged" in problems[0]
    assert last.startswith("Error: 1 run failed: ")
    assert "20000" in last
    assert "--retry" in last


def test_benchmarks_that_are_not_there_end_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        benchmarks.main(["W9"])
    assert str(ended.value) == "W9: must be of W0, " + ", ".join(benchmarks.WORKLOADS) + "."
    monkeypatch.setattr(benchmarks, "measure", lambda *_: False)
    monkeypatch.setattr(
        benchmarks, "logging", SimpleNamespace(getLogger=logging.Logger, WARNING=30)
    )
    with pytest.raises(typer.Exit) as left_out:
        benchmarks.main(["W1"], turns=5, workers=1, steps=0)
    assert left_out.value.exit_code == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"W1 is left out: it needs FEDAPP_DATA with {benchmarks.WORKLOADS['W1'].data}"


@pytest.mark.parametrize("accuracies", [None, (0.5, 0.5)])
def test_a_demonstration_that_fails_ends_with_the_reason(
    accuracies: tuple[float, ...] | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def demonstrate(folder: Path) -> Path:
        if accuracies is None:
            raise RuntimeError("the run 'run' did not end well:\n--- superlink.log")
        lines = (json.dumps({"test_accuracy": accuracy}) for accuracy in accuracies)
        (folder / "metrics.jsonl").write_text("\n".join(lines))
        return folder

    monkeypatch.setattr(demo, "demonstrate", demonstrate)
    monkeypatch.setattr(processes, "SIGNALS", ())
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert demo.main() == 1
    reason = "the accuracy did not rise" if accuracies else "the run 'run' did not end well:"
    assert capsys.readouterr().out.splitlines()[-1] == f"[deploy-demo] failed: {reason}"


def deploy_run(started: Federation, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.run", str(ROOT), *words],
        cwd=ROOT,
        env=started.environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.process
def test_a_simulation_ends_as_its_run_did(simulation: Federation) -> None:
    """What `make simulation` calls; `flwr run --stream` ends with 0. `.ci/simulation` ends well."""
    bad = simulation.write_settings({**SMALL, "dataset": "/nowhere"}, "bad")
    ended = deploy_run(simulation, "here", "-c", str(bad))
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("Error: run ")
    assert "finished:failed" in last
    assert "dataset = '/nowhere': there is no such folder" in last

    ended = deploy_run(simulation, "elsewhere")
    assert ended.returncode == 1
    assert "SuperLink connection 'elsewhere' not found" in ended.stderr.splitlines()[-1]
