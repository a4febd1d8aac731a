"""Checkpoints: safetensors beside a JSON that says what they are; nothing is pickled.

``checkpoints/round-000010.safetensors`` holds ``theta/<name>`` and ``algorithm/<name>``, and of clients
that keep a state ``last_used_round/clients`` [k] and ``last_used_round/rounds`` [k];
``round-000010.json`` holds the round, the format and the tensors' SHA-256, and is written last,
so that a checkpoint without it does not count.
"""

from __future__ import annotations

import hashlib
import json
from logging import WARNING
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from flwr.common.logger import log
from safetensors import SafetensorError
from torch import Tensor

from fedapp.errors import CheckpointError
from fedapp.federation.callback import ServerState
from fedapp.files import json_problem, write_atomically, write_json
from fedapp.training.algorithm import Tensors

FORMAT = 1
COUNTED = ("counted/clients", "counted/rounds")
KEPT = 2
"""How many checkpoints stay: the last, and the one before in case the last is damaged."""


def save_checkpoint(folder: Path, state: ServerState) -> Path:
    """Write ``state`` into ``folder`` and keep but it and the one before it.

    One of a later round goes too: it is damaged, and the rounds up to it are run again; and so does
    what a kill in the middle of a write has left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{state.round:06d}.safetensors"
    content = safetensors.torch.save(
        {
            **{f"theta/{name}": _plain(tensor) for name, tensor in state.theta.items()},
            **{f"algorithm/{name}": _plain(tensor) for name, tensor in state.algorithm.items()},
            **_counted(state),
        }
    )
    write_atomically(path, content)
    digest = hashlib.sha256(content).hexdigest()
    write_json(
        path.with_suffix(".json"), {"format": FORMAT, "round": state.round, "sha256": digest}
    )
    descriptions = _descriptions(folder)
    here = descriptions.index(path.with_suffix(".json"))
    kept = {description.stem for description in descriptions[here : here + KEPT]}
    for old in sorted(folder.glob("*round-*")):
        if old.stem not in kept:
            old.unlink()
    return path


def load_checkpoint(folder: Path, reached: int | None = None) -> ServerState:
    """Return the newest checkpoint in ``folder`` that is whole, of no later round than ``reached``.

    ``reached`` is the last round of which the metrics have all rounds up to it (None: any).

    Raises
    ------
    CheckpointError
        There is none; the message says what is wrong with each that is there.
    """
    problems = []
    for description in _descriptions(folder):
        try:
            _check_reached(description, reached)
            return _read(description)
        except CheckpointError as error:
            problems.append(str(error))
            log(WARNING, "%s; trying the one before", error)
    found = "\n  ".join(problems) or "there is none"
    raise CheckpointError(
        f"no checkpoint to resume from in {folder}:\n  {found}\n"
        "Begin again in another run-dir, or remove this run's folder and leave resume out."
    )


def _check_reached(description: Path, reached: int | None) -> None:
    """Refuse a checkpoint whose rounds the metrics do not have: a resume does not run them again."""
    round_ = int(description.stem.removeprefix("round-"))
    if reached is not None and round_ > max(reached, 0):
        have = f"rounds 0 to {reached} without a gap" if reached >= 0 else "no round 0"
        raise CheckpointError(
            f"checkpoint {description} is of round {round_}, and metrics.jsonl has {have}"
        )


def kept_rounds(folder: Path) -> list[int]:
    """Return the rounds of the checkpoints in ``folder``, newest first."""
    return [int(path.stem.removeprefix("round-")) for path in _descriptions(folder)]


def drop_checkpoints(folder: Path, first: int) -> None:
    """Remove the checkpoints of round ``first`` and of later ones."""
    for description in _descriptions(folder):
        if int(description.stem.removeprefix("round-")) >= first:
            _remove(description)


def _remove(description: Path) -> None:
    description.unlink()
    description.with_suffix(".safetensors").unlink(missing_ok=True)


def _descriptions(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"), reverse=True)


def _read(description: Path) -> ServerState:
    path = description.with_suffix(".safetensors")
    try:
        said: dict[str, Any] = json.loads(description.read_text())
        content = path.read_bytes()
        round_, format_, digest = int(said["round"]), said["format"], said["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {description} cannot be read: {json_problem(error)}"
        ) from error
    if path.stem != f"round-{round_:06d}":
        raise CheckpointError(f"checkpoint {description} says that it is of round {round_}")
    if format_ != FORMAT:
        raise CheckpointError(f"checkpoint {description} has format {format_!r}, not {FORMAT}")
    if hashlib.sha256(content).hexdigest() != digest:
        raise CheckpointError(f"checkpoint {path} is damaged: its SHA-256 is not the one noted")
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    clients, rounds = (tensors.get(name) for name in COUNTED)
    last_used_round = {} if clients is None or rounds is None else zip(clients, rounds, strict=True)
    return ServerState(
        round_,
        _part(tensors, "theta/"),
        _part(tensors, "algorithm/"),
        {int(client): int(last) for client, last in last_used_round},
    )


def check_fits(state: ServerState, theta: Tensors, folder: Path) -> None:
    """Refuse a checkpoint of another model.

    Raises
    ------
    CheckpointError
        Names, shapes or types differ from those of ``theta``, or values are not finite.
    """
    if problem := mismatch(state.theta, theta):
        raise CheckpointError(f"the checkpoint in {folder} {problem}")
    state.theta = {name: state.theta[name] for name in theta}


def mismatch(found: Tensors, theta: Tensors) -> str:
    """Say why ``found`` cannot stand in the place of ``theta``: other names, shapes, types, or nan."""
    mine = {name: (tuple(t.shape), str(t.dtype)) for name, t in theta.items()}
    theirs = {name: (tuple(t.shape), str(t.dtype)) for name, t in found.items()}
    if mine != theirs:
        odd = min(name for name, _ in mine.items() ^ theirs.items())
        return f"is of another model: {odd!r} is {theirs.get(odd)} there and {mine.get(odd)} in this run"
    broken = [name for name, tensor in found.items() if not bool(torch.isfinite(tensor).all())]
    return f"holds nan or infinite values: {broken[0]!r}" if broken else ""


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _counted(state: ServerState) -> Tensors:
    """Return the clients of which a turn counted, ascending, and the rounds of their last."""
    clients = sorted(state.last_used_round)
    rounds = [state.last_used_round[client] for client in clients]
    return {n: torch.tensor(v) for n, v in zip(COUNTED, (clients, rounds), strict=True) if v}


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
