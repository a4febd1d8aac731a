"""What a GPU makes of it: memory traffic, the sequential trainer, and centralised training beside it.

    python -m benchmarks.gpu                 W1 with 100 clients a round, W4, W3, and convolutions
    python -m benchmarks.gpu --device cpu --steps 2     the same commands where there is no GPU

W1: seconds a round of both trainers, and of the batched one over the time in which the device moves
the least bytes that the round needs. W4: seconds of the 1,500 rounds of pfl-research's benchmark,
with an evaluation every ten. W3: images a second, over those of a bare centralised loop at its best
batch size. Convolutions: a step of several clients as grouped convolutions, as products, and one by
one, contiguous and channels-last. FEDAPP_DATA names the folder with the data sets; without it random
images of their shapes stand in. Of the project's needs it takes NumPy, PyTorch, pydantic and what
reads a terminal's options (typer, rich). Without Flower a round is the trainer's alone, and W1 has no
row with messages and server.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.bare import clients_of
from benchmarks.convolutions import compare
from benchmarks.stand_in import WRITERS
from benchmarks.trainers import Round, trainer_round
from benchmarks.turns import median_seconds
from benchmarks.workloads import WORKLOADS, Workload
from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar
from fedapp.data.load import load_transform
from fedapp.data.node_data import NodeData, read_node_data
from fedapp.errors import ConfigError
from fedapp.training.batches import to_device
from fedapp.training.build import (
    DTYPES,
    initial_parameters,
    make_evaluator,
    make_model,
    make_module,
)
from fedapp.training.device import choose_device, set_memory_format, to_memory_format
from fedapp.training.round_plan import RoundPlan

CONVOLUTIONS = "convolutions"
W4_ROUNDS = 1500
EVALUATED_EVERY = 10
BATCHES = (50, 100, 250, 500, 1000, 2000, 4000)
"""Batch sizes of the centralised loop, of which the best counts."""

COPIED = 1 << 28
"""Numbers that are copied to measure the bandwidth: 1 GiB of float32."""

console = Console()


def main(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[W1] [W3] [W4] [convolutions]")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to train.")] = "cuda",
    turns: Annotated[int, typer.Option(min=1, help="Rounds of which the median is taken.")] = 5,
    steps: Annotated[int, typer.Option(min=0, help="Local steps a client. 0: all.")] = 0,
) -> None:
    """Print a table a workload."""
    try:
        place = choose_device(read_config({"device": device}))
    except ConfigError as error:
        raise typer.BadParameter(f"{error} Here: --device cpu.") from error
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
    console.print(f"{name}; torch {torch.__version__}, float32; medians of two rounds or more")
    measures = {"W1": measure_w1, "W4": measure_w4, "W3": measure_w3}
    for chosen in names or [*measures, CONVOLUTIONS]:
        if chosen == CONVOLUTIONS:
            console.print(compare(place, turns))
            continue
        if chosen not in measures:
            known = ", ".join([*measures, CONVOLUTIONS])
            raise typer.BadParameter(f"{chosen!r}: one of {known}.")
        with tempfile.TemporaryDirectory() as folder:
            workload = with_data(WORKLOADS[chosen], Path(folder))
            values = workload.values(folder, threads=1, steps=steps)
            if values is None:
                raise typer.BadParameter(f"{chosen} needs FEDAPP_DATA with {workload.data}")
            measures[chosen]({**values, "device": device}, place, turns)


def with_data(workload: Workload, folder: Path) -> Workload:
    """Return the workload with random images in ``folder`` for its data, where there are none."""
    if os.environ.get("FEDAPP_DATA"):
        return workload
    console.print(f"FEDAPP_DATA is not set: random images stand in for {workload.data}")
    images = folder / workload.data
    images.mkdir()
    WRITERS[workload.data](images)
    return replace(workload, stand_in={"dataset": str(images), "data-cache": f"{folder}/cache"})


def whole_round(config: RunConfig, node_data: NodeData) -> Round | None:
    """Return a round with messages and server in this process; None where Flower is not installed."""
    try:
        from benchmarks.rows import inline_round
    except ModuleNotFoundError:
        return None
    return inline_round(config, node_data)


def measure_w1(values: dict[str, Scalar], device: torch.device, turns: int) -> None:
    """W1 with all 100 clients a round: both trainers, and the floor."""
    values = {**values, "fraction-train": 1.0}
    config = read_config({**values, "trainer": "batched"})
    node_data = read_node_data(config, None)
    least = least_bytes(config, node_data) / bandwidth(device)
    sequential = read_config({**values, "trainer": "sequential"})
    rounds = {
        "trainer sequential": (trainer_round(sequential, node_data), min(turns, 2)),
        "trainer batched": (trainer_round(config, node_data), turns),
    }
    whole = whole_round(config, node_data)
    if whole is not None:
        rounds["in-process round, batched"] = (whole, turns)
    times = {name: median_seconds(call, device, count) for name, (call, count) in rounds.items()}
    table = Table("what", "ms a round", "sequential / it", "it / floor", title="W1, 100 clients")
    table.add_row("floor: least memory traffic", f"{1e3 * least:.2f}", "", "1.0")
    for name, seconds in times.items():
        gain = times["trainer sequential"] / seconds
        table.add_row(name, f"{1e3 * seconds:.2f}", f"{gain:.1f}", f"{seconds / least:.1f}")
    console.print(table)


def measure_w4(values: dict[str, Scalar], device: torch.device, turns: int) -> None:
    """W4's 1,500 rounds, from a few of them and the evaluation of the test set."""
    config = read_config({**values, "trainer": "batched"})
    node_data = read_node_data(config, None)
    task = node_data.dataset.task
    round_ = whole_round(config, node_data) or trainer_round(config, node_data)
    each = median_seconds(round_, device, 4 * turns)
    evaluator = make_evaluator(config, task, node_data.dataset.test)
    theta = {n: tensor.to(device) for n, tensor in initial_parameters(config, task).items()}
    score = median_seconds(lambda: evaluator.score(theta), device, turns)
    whole = W4_ROUNDS * (each + score / EVALUATED_EVERY)
    table = Table("what", "value", title=f"W4, {W4_ROUNDS:,} rounds")
    table.add_row("a round", f"{1e3 * each:.2f} ms")
    table.add_row("an evaluation", f"{1e3 * score:.2f} ms")
    table.add_row(f"all, evaluated every {EVALUATED_EVERY} rounds", f"{whole:.1f} s")
    console.print(table)


def measure_w3(values: dict[str, Scalar], device: torch.device, turns: int) -> None:
    """W3 with all ten clients a round, beside a centralised loop."""
    config = read_config({**values, "trainer": "batched", "fraction-train": 1.0})
    node_data = read_node_data(config, None)
    plan = RoundPlan.of(config)
    clients = list(range(config.num_clients))
    images = sum(
        min(plan.num_steps(n) * plan.batch(n), plan.epochs * n)
        for n in (len(node_data.train(client)) for client in clients)
    )
    federated = images / median_seconds(trainer_round(config, node_data), device, turns)
    alone = {size: central_speed(config, node_data, device, size) for size in BATCHES}
    best = max(alone, key=lambda size: alone[size])
    table = Table("what", "images a second", "ratio", title="W3, 10 clients")
    table.add_row(f"centralised, bare loop, B = {best}", f"{alone[best]:,.0f}", "1.00")
    table.add_row("trainer batched", f"{federated:,.0f}", f"{federated / alone[best]:.2f}")
    console.print(table)


def least_bytes(config: RunConfig, node_data: NodeData) -> float:
    """Return the bytes that a round has to move if the parameters of all clients fit no cache.

    Each local step of each client reads its parameters forward, and reads and writes them when it
    descends; data and activations are not counted.
    """
    theta = initial_parameters(config, node_data.dataset.task)
    size = sum(tensor.numel() * tensor.element_size() for tensor in theta.values())
    plan = RoundPlan.of(config)
    sizes = (len(node_data.train(client)) for client in clients_of(config))
    return 3.0 * size * sum(map(plan.num_steps, sizes))


def bandwidth(device: torch.device) -> float:
    """Return the bytes a second of a large copy on the device, both read and written ones."""
    source = torch.ones(COPIED if device.type == "cuda" else COPIED >> 4, device=device)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), device, 10)
    return 2.0 * source.numel() * source.element_size() / seconds


def central_speed(
    config: RunConfig, node_data: NodeData, device: torch.device, batch_size: int
) -> float:
    """Return the images a second of plain centralised training, its data on the device."""
    module = make_module(config, node_data.dataset.task).to(device).train()
    form = set_memory_format(module)
    inputs, targets = to_device(node_data.dataset.train, device)
    inputs = load_transform(config).test(inputs[:batch_size], DTYPES[config.precision])
    model, optimizer = make_model(config), torch.optim.SGD(module.parameters(), lr=1e-3)

    inputs, targets = to_memory_format(inputs, form), targets[:batch_size]

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.loss(module(inputs), targets).backward()
        optimizer.step()

    return batch_size / median_seconds(step, device, 20 if device.type == "cuda" else 2)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
