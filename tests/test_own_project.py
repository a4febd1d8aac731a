"""The page "From an empty folder", run as it stands there, and its app in Flower."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedapp
from deploy.federation import environment, federation
from deploy.processes import Processes, free_port
from fedapp.cli.init import create_app
from fedapp.client_app import app as client_app
from fedapp.config.read import dotted
from fedapp.engines.in_process import run_inline
from fedapp.server_app import app as server_app
from tests.in_process import metrics
from tests.own_app import app_in, write
from tests.printed import PORTS, ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "own-project.md").read_text()
WHEEL = f"fedapp-{fedapp.__version__}-py3-none-any.whl"
END = "--- end of a block"
TOLERANCE = 0.02
"""Of numbers with decimals, absolute or relative: another processor adds in another order."""
DECIMAL = r"\d+\.\d+"


def blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield kind, content and file of each block but the installation.

    The file is the last that the text before the block names.
    """
    pattern = re.compile(r"(.*?)^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for prose, kind, content in pattern.findall(text):
        names = re.findall(r"`([\w/]+\.(?:py|toml))`", prose)
        if "pip install" not in content:
            yield kind, content, names[-1] if names else ""


def files_of(text: str) -> dict[str, str]:
    """Return the files that the blocks of a page make, by name."""
    return {name: content for kind, content, name in blocks(text) if kind in ("python", "toml")}


def difference(expected: str, printed: str) -> str:
    """Return what of a page's output was not printed, or ""; ``...`` is anything, a blank any blanks."""
    expected, printed = " ".join(expected.split()), " ".join(printed.split())
    forms = {"...": ".*?"}
    pieces = re.split(rf"(\.\.\.|{DECIMAL})", expected)
    decimals = [piece for piece in pieces if re.fullmatch(DECIMAL, piece)]
    forms |= dict.fromkeys(decimals, f"({DECIMAL})")
    found = re.fullmatch("".join(forms.get(each, re.escape(each)) for each in pieces), printed)
    if found is None:
        return f"{printed}\nis not\n{expected}"
    wrong = [
        f"{given} instead of {decimal}"
        for decimal, given in zip(decimals, found.groups(), strict=True)
        if float(given) != pytest.approx(float(decimal), TOLERANCE, TOLERANCE)
    ]
    return f"{', '.join(wrong)} in\n{printed}" if wrong else ""


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("round 3, accuracy 0.955, 0.40 s\nend", ""),
        ("round 3, accuracy 0.9, 0.40 s end", "0.9 instead of 0.95 in"),
        ("round 4, accuracy 0.95, 0.40 s end", "is not"),
        ("round 3, loss 0.95, 0.40 s end", "is not"),
    ],
)
def test_outputs_are_compared_by_words_and_up_to_a_tolerance(printed: str, said: str) -> None:
    assert said in (found := difference("round 3, accuracy 0.95, ... s end", printed))
    assert bool(found) == bool(said)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Return an environment that has the wheel, and what it requires, but no checkout.

    Flower keeps to the test's folder. What it would start and leave behind, a SuperLink that simulates
    nodes, is started here: a busy machine needs more than the 15 s that `flwr run` waits for it.
    """
    bin_ = tmp_path / "venv" / "bin"
    uv = [sys.executable, "-m", "uv", "--no-config", "--quiet"]
    pins = ["--python", str(bin_ / "python"), "--constraint", str(ROOT / "constraints.txt")]
    for command in (
        [*uv, "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT)],
        [*uv, "venv", "--python", sys.executable, str(tmp_path / "venv")],
        [*uv, "pip", "install", *pins, str(tmp_path / WHEEL)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "FEDAPP_RUNS", "FEDAPP_APP"):
        monkeypatch.delenv(name, raising=False)
    port, path = str(free_port()), f"{bin_}{os.pathsep}{os.environ['PATH']}"
    own = {
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "PATH": path,
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }
    started = Processes(tmp_path, environment(tmp_path / "flwr") | own)
    options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", port]
    started.start("local", str(bin_ / "flower-superlink"), *options)
    yield started
    assert not started.stop()


def script_of(page: str) -> str:
    """Return the commands of a page, with its files, and a line after what each block prints."""
    lines = ["set -e", "trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT"]
    for kind, content, name in blocks(page):
        if kind == "bash":
            lines.append(f"{content}echo '{END}'")
        elif kind in ("python", "toml"):
            lines.append(f"cat > {name} <<'FILE'\n{content}FILE")
    script = "\n".join(lines)
    for printed in PORTS:
        script = re.sub(rf"\b{printed}\b", str(free_port()), script)
    return script


@pytest.mark.pages
def test_the_commands_print_what_the_page_says(tmp_path: Path, installed: Processes) -> None:
    (tmp_path / "empty").mkdir()
    command = ["/bin/bash", "-c", f"cd {tmp_path / 'empty'}\n{script_of(PAGE)}"]
    ended = installed.start("page", *command).wait(840)
    said = iter(re.sub(r"\x1b\[[0-9;]*m", "", installed.log("page")).split(f"{END}\n"))
    assert ended == 0, installed.logs()
    output = ""
    for kind, content, _ in blocks(PAGE):
        if kind == "bash":
            output = next(said)
        elif kind == "text":
            assert not (found := difference(content, output)), found


# ---------------------------------------------------------------------- in Flower

SMALL = {"num-server-rounds": 3, "precision": "float64", "device": "cpu", "pictures": False}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the page's app with its table, in which this process works."""
    folder = tmp_path / "clinics"
    create_app(folder)
    write(folder, files_of(PAGE))
    monkeypatch.chdir(folder)
    subprocess.run([sys.executable, "make_data.py"], check=True)
    with app_in(folder):
        yield folder


def settings_in(file: str, data: Path) -> dict[str, Any]:
    """Return the settings of a TOML file of the page, with the table in ``data``."""
    return {**dotted(tomllib.loads(files_of(PAGE)[file])), "dataset": str(data), **SMALL}


def losses(folder: Path) -> list[float]:
    """Return the test loss of each round."""
    return [record["test_loss"] for record in metrics(folder)]


def check_own_code(folder: Path, app: Path) -> None:
    """Check that a run used the app's algorithm and network, and keeps them."""
    for key, name in (("algorithm", "pull"), ("model", "nets")):
        copy = folder / "components" / key / "clinics" / f"{name}.py"
        assert copy.read_bytes() == (app / "clinics" / f"{name}.py").read_bytes()


@pytest.mark.nightly
def test_two_clinics_with_tables_of_their_own_train_the_app(app: Path, tmp_path: Path) -> None:
    """One has the small tumours; the statistics are those of both together."""
    header, *lines = (app / "cells" / "train.csv").read_text().splitlines(keepends=True)
    small = [line for line in lines if float(line.split(",")[0]) < 13]
    nodes: list[dict[str, Any]] = []
    for client, rows in enumerate((small, [line for line in lines if line not in small])):
        write(tmp_path / f"clinic-{client}", {"train.csv": "".join([header, *rows])})
        nodes.append({"data-path": str(tmp_path / f"clinic-{client}"), "client-id": client})
    settings = settings_in("nodes.toml", app / "cells")
    here = {**settings, "run-dir": str(tmp_path / "here")}
    run_inline(server_app, client_app, here, node_configs=nodes)
    with federation(tmp_path / "federation") as started:
        for node in nodes:
            own = {key.replace("-", "_"): value for key, value in node.items()}
            started.start_node(f"clinic-{node['client-id']}", **own)
        folder = started.run(settings, "run", app=app)
    assert losses(folder) == pytest.approx(losses(tmp_path / "here"), rel=1e-9)
    assert metrics(folder)[-1]["test_accuracy"] > 0.85
    assert metrics(folder)[-1]["examples"] == 426
    columns = json.loads((folder / "table.json").read_text())["columns"]
    table = zip(*(map(float, line.split(",")[:-1]) for line in lines), strict=True)
    for name, numbers in zip(header.split(",")[:-1], map(list, table), strict=True):
        assert columns[name]["mean"] == pytest.approx(statistics.fmean(numbers))
        assert columns[name]["deviation"] == pytest.approx(statistics.pstdev(numbers))
    check_own_code(folder, app)
