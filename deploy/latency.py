"""Seconds of a round whose client does nothing: ``python -m deploy.latency --rounds 8``.

One SuperNode on this machine. First an app of a few lines that sends with Flower's own
``Grid.send_and_receive``, then this one, each with Flower's interval between two looks for tasks
and with a shorter one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.federation import ROOT, RUN_SECONDS, Federation
from fedapp.config.settings import Scalar

INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"

BARE_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "bare"
version = "0.1.0"
description = "A round trip and nothing else"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.42,<1.43"]
[tool.flwr.app]
publisher = "fedapp"
fab-format-version = 1
flwr-version-target = "1.42.0"
fab-include = ["bare.py", "LICENSE"]
[tool.flwr.app.components]
serverapp = "bare:server"
clientapp = "bare:client"
[tool.flwr.app.config]
rounds = 1
nodes = 1
result = ""
"""

BARE_APP = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()

@client.train()
def train(message, context):
    import torch
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.5)
    nodes, seconds = nodes[:context.run_config["nodes"]], []
    for _ in range(context.run_config["rounds"]):
        began = time.perf_counter()
        grid.send_and_receive([Message(RecordDict(), node, "train") for node in nodes], timeout=300)
        seconds.append(time.perf_counter() - began)
    Path(context.run_config["result"]).write_text(json.dumps(seconds))
"""


def write_bare_app(folder: Path) -> Path:
    """Write the app that only sends messages and waits for the replies; return its folder."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(BARE_PROJECT)
    (folder / "bare.py").write_text(BARE_APP)
    (folder / "LICENSE").write_text((ROOT / "LICENSE").read_text())
    return folder


def measure_bare(started: Federation, rounds: int) -> dict[str, float]:
    """Return the median seconds of a round of Flower's own sending and polling."""
    result = started.folder / "bare.json"
    app = write_bare_app(started.folder / "bare")
    settings = f"rounds={rounds} result='{result}'"
    command = ["flwr", "run", str(app), "here", "--run-config", settings, "--stream"]
    started.start("bare", *command).wait(RUN_SECONDS)
    return {"round": statistics.median(json.loads(result.read_text()))}


def measure(started: Federation, rounds: int) -> dict[str, float]:
    """Return the median seconds of a round of this app, and of its parts."""
    settings: dict[str, Scalar] = {
        "num-server-rounds": rounds,
        "num-clients": 1,
        "fraction-train": 1.0,
        "local-steps": 1,
        "model": "linear",
        "pictures": False,
        "eval-every": 0,
    }
    folder = started.run(settings, "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    spent = [json.loads(line)["seconds"] for line in lines[1:]]
    return {part: statistics.median(s[part] for s in spent) for part in PARTS}


PARTS = ("round", "wait", "transfer", "train")


def with_variables(variables: Mapping[str, str], rounds: int, *, bare: bool) -> dict[str, float]:
    """Start a federation with these environment variables, measure, and end it."""
    with tempfile.TemporaryDirectory(prefix="fedapp-latency-") as folder:
        started = Federation(Path(folder))
        started.environment.pop(INTERVAL)
        started.environment |= variables
        try:
            started.start_superlink()
            started.start_node("node")
            return measure_bare(started, rounds) if bare else measure(started, rounds)
        finally:
            started.stop()


def main(arguments: list[str]) -> None:
    """Print the table of ``docs/deploy-reference.md``."""
    parser = argparse.ArgumentParser(prog="python -m deploy.latency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args(arguments).rounds
    cases: list[tuple[str, dict[str, str], bool]] = [
        ("send_and_receive, Flower's interval of 1 s", {}, True),
        ("this app, Flower's interval of 1 s", {}, False),
        ("this app, interval 0.1 s", {INTERVAL: "0.1"}, False),
    ]
    print(f"| {'what':42} | {' | '.join(f'{part:>8}' for part in PARTS)} |")
    for name, variables, bare in cases:
        found = with_variables(variables, rounds, bare=bare)
        cells = [f"{found[part]:8.2f}" if part in found else " " * 8 for part in PARTS]
        print(f"| {name:42} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
