"""Runs in processes of their own that are killed at a chosen point.

The processes are forked from a server that has imported PyTorch and Flower once, and share
nothing else with each other.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedapp.config.settings import Scalar
from fedapp.federation.round_result import RoundResult

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        *("tests.killed", "tests.in_process", "fedapp.cli.main", "fedapp.runs.report"),
        *("fedapp.server_app", "fedapp.studies.sweep.execute"),
    ]
)
SECONDS = 120


def die() -> None:
    """End this process as `kill -9` and the kernel's memory killer do."""
    os.kill(os.getpid(), signal.SIGKILL)


def _before_replacing(name: str) -> None:
    """Die when the file `name` is written beside its place and not yet moved there."""
    replace = Path.replace

    def dying(self: Path, target: Path) -> Path:
        if Path(target).name == name:
            die()
        return replace(self, target)

    Path.replace = dying


def after_checkpoint(round_: int) -> None:
    """Die when the checkpoint of a round is whole."""
    from fedapp.runs import callbacks

    save = callbacks.save_checkpoint

    def dying(folder: Path, state: Any) -> None:
        save(folder, state)
        if state.round == round_:
            die()

    callbacks.save_checkpoint = dying


def no_room_for_the_checkpoint(round_: int) -> None:
    """Let the disk be full while the checkpoint of a round is written: files may not grow."""
    from fedapp.runs import callbacks

    save = callbacks.save_checkpoint

    def limited(folder: Path, state: Any) -> None:
        if state.round == round_:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
        try:
            save(folder, state)
        finally:
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )

    callbacks.save_checkpoint = limited


def while_training(round_: int, act: Callable[[], None] = die) -> None:
    """Die when two clients of a round have trained and the third begins."""
    from fedapp.training import client as cohorts

    make, turns = cohorts.client_generator, []

    def dying(seed: int, current: int, client: int) -> Any:
        if current == round_:
            turns.append(client)
            if len(turns) == 3:
                act()
        return make(seed, current, client)

    cohorts.client_generator = dying


def interrupted_while_training(round_: int) -> None:
    """Get the signal of Ctrl-C there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' background jobs ignore it
    while_training(round_, lambda: signal.raise_signal(signal.SIGINT))


def terminated_while_training(round_: int) -> None:
    """Get the signal of `kill` there."""
    while_training(round_, lambda: signal.raise_signal(signal.SIGTERM))


def in_the_checkpoints_tensors(round_: int) -> None:
    """Die when a checkpoint's tensors are not yet in their place."""
    _before_replacing(f"round-{round_:06d}.safetensors")


def before_the_checkpoints_description(round_: int) -> None:
    """Die between a checkpoint's tensors and the JSON that makes them count."""
    _before_replacing(f"round-{round_:06d}.json")


def in_the_line_of_metrics(round_: int) -> None:
    """Die when half of a round's line is written."""
    from fedapp.runs.callbacks import Metrics
    from fedapp.runs.metrics import to_line

    write = Metrics.on_round

    def dying(self: Metrics, result: RoundResult, state: Any) -> bool:
        if state.round == round_:
            with self.path.open("a") as file:
                line = to_line(result.metrics)
                file.write(line[: len(line) // 2])
            die()
        return write(self, result, state)

    Metrics.on_round = dying


def in_the_last_files(round_: int) -> None:
    """Die between the last checkpoint and the final model."""
    _before_replacing("model.safetensors")


POINTS = {
    point.__name__: point
    for point in (
        after_checkpoint,
        no_room_for_the_checkpoint,
        while_training,
        interrupted_while_training,
        terminated_while_training,
        in_the_checkpoints_tensors,
        before_the_checkpoints_description,
        in_the_line_of_metrics,
        in_the_last_files,
    )
}


def _start(
    settings: list[str],
    nodes: int | None,
    last_first: bool,
    resume: Path | None,
    workers: int,
    ray_address: str,
) -> None:
    from fedapp.cli.run import run
    from fedapp.engines import in_process as inline
    from tests.in_process import LastFirstGrid

    if last_first:
        inline.InlineGrid = LastFirstGrid
    run(settings, nodes=nodes, resume=resume, workers=workers, ray_address=ray_address)


def _child(point: str | None, round_: int, *started: Any) -> None:
    if point is not None:
        POINTS[point](round_)
    _start(*started)


def run(
    settings: dict[str, Scalar],
    *,
    nodes: int | None = None,
    last_first: bool = False,
    resume: Path | None = None,
    workers: int = 0,
    ray_address: str = "",
    kill: tuple[str, int] | None = None,
) -> int:
    """Call `fedapp run` with the settings in a new process and return its exit code."""
    words = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in settings.items()]
    point, round_ = kill or (None, 0)
    started = (words, nodes, last_first, resume, workers, ray_address)
    process = PROCESSES.Process(target=_child, args=(point, round_, *started))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    return int(process.exitcode)
