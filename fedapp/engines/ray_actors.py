"""Ray actors, one in each bundle of a placement; one that dies is started again where there is room."""

from __future__ import annotations

import math
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import ray
from flwr.common.logger import log
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedapp.config.app_folder import APP_VARIABLE
from fedapp.engines.ray_placement import WorkerPlacement, node_names
from fedapp.errors import ConfigError, RunError, one_line

START_SECONDS = 300.0
"""Longest wait for the first start of all actors, in seconds: each imports Python and PyTorch."""
RESTART_SECONDS = 5.0
"""Pause after a start that failed, in seconds; Ray may not know yet that a node is lost."""
REMOVE_SECONDS = 5.0
"""Longest wait for files of a check to be removed, in seconds."""


class PoolActor:
    """The base of the actors of a pool, for an app in ``folder``; "." is one that came from elsewhere."""

    def __init__(self, folder: str) -> None:
        os.environ[APP_VARIABLE] = here = str(Path(folder).absolute())
        sys.path.insert(0, here)  # before the folder of the command, which Ray adds
        if not ray.get_gpu_ids():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # read when CUDA is first used

    def touch(self, path: Path) -> str:
        """Make an empty file; return why it cannot be made, or ""."""
        try:
            path.touch(exist_ok=False)
        except OSError as error:
            return error.strerror or repr(error)
        return ""

    def sees(self, paths: Sequence[Path]) -> bool:
        """Return whether this process sees all of the files."""
        return all(path.exists() for path in paths)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def node_id(self) -> str:
        """Return the id of the actor's node."""
        return str(ray.get_runtime_context().get_node_id())


@dataclass
class _Member:
    """An actor: its node once it has ``started``, or the ``problem`` of a start that failed."""

    handle: Any
    started: Any
    starts: int
    problem: str
    location: str = ""
    restart_at: float = math.inf


class ActorPool:
    """Actors 1 .. N, of which those that are alive work; nobody waits for the others.

    Ray moves the bundle of a lost node to another one as soon as it has room, and the actor joins again
    there. ``arguments`` of an actor's number are those of its constructor.

    Raises
    ------
    RunError
        An actor does not start; the message has the reason.
    """

    def __init__(
        self,
        placement: WorkerPlacement,
        actor_class: type[PoolActor],
        arguments: Callable[[int], tuple[Any, ...]],
    ) -> None:
        self._placement, self._class, self._arguments = placement, actor_class, arguments
        self._members = {number: self._start(number) for number in range(1, placement.workers + 1)}
        self._wait()

    def alive(self) -> dict[int, int]:
        """Return the numbers of the actors that are alive, and how often each was started."""
        now, missing = time.monotonic(), dict[Any, int]()
        for number, member in self._members.items():
            if member.restart_at < now:
                self._members[number] = self._start(number, member.starts, member.problem)
            elif not member.location and member.restart_at == math.inf:
                missing[member.started] = number
        ready, _ = (
            ray.wait(list(missing), num_returns=len(missing), timeout=0) if missing else ([], [])
        )
        for number in map(missing.__getitem__, ready):
            self._join(number)
        return {n: member.starts for n, member in self._members.items() if member.location}

    def handle(self, number: int) -> Any:
        """Return the actor, or None while it is not alive."""
        member = self._members[number]
        return member.handle if member.location else None

    def restart(self, number: int, handle: Any, error: RayActorError) -> None:
        """Start an actor again because a call of ``handle`` raised the error; once for each death."""
        member = self._members[number]
        if handle is not member.handle:
            return
        ray.kill(handle)  # one that Ray only cannot reach
        self._members[number] = self._start(number, member.starts)
        there = sum(bool(each.location) for each in self._members.values())
        log(
            WARNING,
            "Worker %d on %s died: %s. %d of %d workers go on; it starts again where there is room",
            number,
            member.location,
            _cause(error),
            there,
            len(self._members),
        )

    def require_shared(self, folder: Path, option: str, because: str) -> None:
        """Check that the actors and this process see each other's files in a folder.

        Raises
        ------
        ConfigError
            One does not; the message names it.
        """
        handles = {number: self.handle(number) for number in self.alive()}
        paths = {number: folder / f".shared-{uuid.uuid4().hex}" for number in (0, *handles)}
        every = list(paths.values())
        paths[0].touch()
        try:
            problems = {n: ray.get(each.touch.remote(paths[n])) for n, each in handles.items()}
            hidden = [n for n in handles if problems[n] or not paths[n].exists()]
            hidden += [n for n, each in handles.items() if not ray.get(each.sees.remote(every))]
            if hidden:
                number = hidden[0]
                reason = f" ({problems[number]})" if problems[number] else ""
                raise ConfigError(
                    f"{option}: worker {number} on {self._members[number].location} and others do not "
                    f"see each other's files in {folder}{reason}. {because}: choose a folder that this "
                    "machine and all nodes of the cluster share."
                )
        finally:
            paths[0].unlink()
            removed = [each.remove.remote(paths[number]) for number, each in handles.items()]
            ray.wait(removed, num_returns=len(removed), timeout=REMOVE_SECONDS)

    def _start(self, number: int, starts: int = 0, problem: str = "") -> _Member:
        resources, group = self._placement.resources, self._placement.group
        actor = ray.remote(self._class).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number - 1),
        )
        handle: Any = actor.remote(*self._arguments(number))
        return _Member(handle, handle.node_id.remote(), starts + 1, problem)

    def _join(self, number: int) -> None:
        """Take in an actor that has started again, or note that it failed to."""
        member = self._members[number]
        try:
            member.location = node_names()[ray.get(member.started)]
        except (RayError, KeyError) as error:
            before, member.problem = member.problem, _reason(error)
            member.restart_at = time.monotonic() + RESTART_SECONDS
            if member.problem != before:
                log(WARNING, "Worker %d does not start: %s", number, member.problem)
        else:
            log(INFO, "Worker %d is there again, on %s", number, member.location)

    def _wait(self) -> None:
        """Wait for the first start of all actors."""
        started = {member.started: number for number, member in self._members.items()}
        left, end = list(started), time.monotonic() + START_SECONDS
        names = node_names()
        while left:
            ready, left = ray.wait(left, timeout=max(end - time.monotonic(), 0.0))
            for number in map(started.__getitem__, ready or left):
                try:
                    node = ray.get(self._members[number].started, timeout=0)
                except RayError as error:
                    raise RunError(
                        f"{self._placement.option}: worker {number} does not start: {_reason(error)}. "
                        "Every node needs this project's dependencies; correct what is wrong, or leave "
                        "the option out."
                    ) from error
                self._members[number].location = names[node]


def _cause(error: RayActorError) -> str:
    """Return what Ray says of a death, or that it knows nothing of the process any more."""
    if isinstance(error, ActorUnavailableError):
        return "it cannot be reached"
    return one_line(str(error).strip()).rstrip(".")


def _reason(error: Exception) -> str:
    """Return the last line of an error, which of an exception in an actor names it."""
    return one_line((str(error).strip().splitlines() or [repr(error)])[-1]).rstrip(".")
