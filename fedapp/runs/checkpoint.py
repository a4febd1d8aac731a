"""Checkpoints: a safetensors file and a JSON file that describes it; nothing is pickled.

``checkpoints/round-000010.safetensors`` holds ``theta/<name>`` and ``algorithm/<name>``, and if clients
keep a state, ``counted/clients`` [k], ``counted/rounds`` [k] with each client's last used round, and
if nodes are clients, ``counted/sizes`` [k] with n_k of all that have been accepted (round 0: none used).
``round-000010.json`` holds the round, the format and the tensors' SHA-256. It is written last, and a
checkpoint without it is ignored.
"""

from __future__ import annotations

import hashlib
import json
import re
from logging import WARNING
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from flwr.common.logger import log
from safetensors import SafetensorError

from fedapp.errors import CheckpointError
from fedapp.federation.callback import ServerState
from fedapp.files import json_problem, write_atomically, write_json
from fedapp.training.algorithm import Algorithm
from fedapp.training.tensors import Tensors, contiguous_copies, part, prefixed

FORMAT = 1
LAST_USED_KEYS = ("counted/clients", "counted/rounds", "counted/sizes")
"""The last is missing with virtual clients, and in checkpoints of fedapp 0.2.0."""
OWN_FILE = re.compile(r"round-\d+\.(safetensors|json)|\.round-\d+\.(safetensors|json)\.\d+\.tmp")
"""Names of files of checkpoints, and of temporary ones; a copy under another name is the user's."""
NUM_STORED = 2
"""Checkpoints that are stored: the last, and the previous one in case the last is damaged."""


def save_checkpoint(folder: Path, state: ServerState) -> Path:
    """Write ``state`` into ``folder``, and remove all but this checkpoint and the previous one.

    Those of later rounds are removed too, since their rounds are run again, and so are the temporary
    files of an interrupted write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"round-{state.round:06d}.safetensors"
    content = safetensors.torch.save(
        {
            **prefixed("theta", contiguous_copies(state.theta)),
            **prefixed("algorithm", contiguous_copies(state.algorithm)),
            **_last_used_tensors(state),
        }
    )
    write_atomically(path, content)
    digest = hashlib.sha256(content).hexdigest()
    write_json(
        path.with_suffix(".json"), {"format": FORMAT, "round": state.round, "sha256": digest}
    )
    descriptions = _descriptions(folder)
    here = descriptions.index(path.with_suffix(".json"))
    stored = {description.stem for description in descriptions[here : here + NUM_STORED]}
    for old in sorted(folder.iterdir()):
        if OWN_FILE.fullmatch(old.name) and old.stem not in stored:
            old.unlink()
    return path


def load_checkpoint(folder: Path, reached: int | None = None) -> ServerState:
    """Return the newest valid checkpoint in ``folder``, of round ``reached`` or earlier.

    ``reached`` is the last round up to which the metrics are complete (None: no bound).

    Raises
    ------
    CheckpointError
        There is none; the message says what is wrong with each of those that exist.
    """
    problems = []
    for description in _descriptions(folder):
        try:
            _check_reached(description, reached)
            return _read(description)
        except CheckpointError as error:
            problems.append(str(error))
            log(WARNING, "%s; trying the one before", error)
    listed = "\n  ".join(problems) or "there is none"
    raise CheckpointError(
        f"no checkpoint to resume from in {folder}:\n  {listed}\n"
        "Start again in another run-dir, or remove this run's folder and leave resume out."
    )


def _check_reached(description: Path, reached: int | None) -> None:
    """Reject a checkpoint of a round that the metrics do not reach: a resume could not add them."""
    round_ = _round_of(description)
    if reached is not None and round_ > max(reached, 0):
        have = f"rounds 0 to {reached} without a gap" if reached >= 0 else "no round 0"
        raise CheckpointError(
            f"checkpoint {description} is of round {round_}, and metrics.jsonl has {have}"
        )


def checkpoint_rounds(folder: Path) -> list[int]:
    """Return the rounds of the checkpoints in ``folder``, newest first."""
    return [_round_of(description) for description in _descriptions(folder)]


def drop_checkpoints(folder: Path, first: int) -> None:
    """Remove the checkpoints of round ``first`` and later."""
    for description in _descriptions(folder):
        if _round_of(description) >= first:
            description.unlink()
            description.with_suffix(".safetensors").unlink(missing_ok=True)


def _descriptions(folder: Path) -> list[Path]:
    found = folder.glob("round-*.json")
    return sorted((path for path in found if path.stem[6:].isdecimal()), reverse=True)


def _round_of(description: Path) -> int:
    return int(description.stem.removeprefix("round-"))


def _read(description: Path) -> ServerState:
    path = description.with_suffix(".safetensors")
    try:
        entry: dict[str, Any] = json.loads(description.read_text())
        content = path.read_bytes()
        round_, format_, digest = int(entry["round"]), entry["format"], entry["sha256"]
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
    clients, rounds, sizes = (tensors[k].tolist() if k in tensors else () for k in LAST_USED_KEYS)
    return ServerState(
        round_,
        part("theta", tensors),
        part("algorithm", tensors),
        {client: last for client, last in zip(clients, rounds, strict=True) if last},
        dict(zip(clients, sizes, strict=False)),
    )


def check_fits(state: ServerState, theta: Tensors, algorithm: Algorithm, folder: Path) -> None:
    """Reject a checkpoint of another model, or of another algorithm; rules may add to their state.

    Raises
    ------
    CheckpointError
        Names, shapes or types differ from those of ``theta`` or of the algorithm's server state, or
        values are not finite.
    """
    start = algorithm.start(theta)
    own = {name: tensor for name, tensor in state.algorithm.items() if name in start}
    other = f"is not of algorithm = {algorithm.name!r}"
    if problem := mismatch(state.theta, theta) or mismatch(own, start, other):
        raise CheckpointError(
            f"the checkpoint in {folder} {problem}. Restore the run's own checkpoints from a copy, or "
            "start another run, in another run-dir."
        )
    state.theta = {name: state.theta[name] for name in theta}


def mismatch(tensors: Tensors, theta: Tensors, other: str = "is of another model") -> str:
    """Return why ``tensors`` cannot replace ``theta``: other names, shapes or types, or not finite."""
    expected = {name: (tuple(t.shape), str(t.dtype)) for name, t in theta.items()}
    actual = {name: (tuple(t.shape), str(t.dtype)) for name, t in tensors.items()}
    if expected != actual:
        name = min(name for name, _ in expected.items() ^ actual.items())
        return f"{other}: {name!r} is {actual.get(name)} there and {expected.get(name)} in this run"
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    return f"holds nan or infinite values: {broken[0]!r}" if broken else ""


def _last_used_tensors(state: ServerState) -> Tensors:
    """Return the clients, ascending, their last used rounds (0: none yet), and n_k if it is known."""
    clients = sorted(state.last_used_round | state.sizes)
    rounds = [state.last_used_round.get(client, 0) for client in clients]
    sizes = [state.sizes[client] for client in clients] if state.sizes.keys() >= {*clients} else []
    columns = zip(LAST_USED_KEYS, (clients, rounds, sizes), strict=True)
    return {name: torch.tensor(values) for name, values in columns if values}
