"""Client states on disk: files named (client, round), in the run directory or on the client's node.

``<folder>/<client>/round-000012.attempt-0.safetensors`` is a client's state after round 12. An attempt
is one start of the server: resuming from the checkpoint of round c begins the next attempt, and files
that earlier attempts wrote after round c are ignored. So are files of client updates whose reply the
server did not use (late, rejected, over-selected), because the server state does not include them:
SCAFFOLD's c would no longer be the mean of the c_k. Every request therefore names the last round whose
result of the client was used, and the client reads the newest file up to that round.

A client's files are kept while they are of use: the newest, the last one used, and the newest up to
each stored checkpoint. A client update that ends after a later one has begun elsewhere, or after the
server has been started again, neither writes nor removes files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedapp.errors import CheckpointError, ConfigError
from fedapp.files import as_path, write_atomically
from fedapp.training.tensors import Tensors, contiguous_copies

NAME = re.compile(r"round-(\d+)\.attempt-(\d+)\.safetensors")
PARTIAL = re.compile(rf"\.{NAME.pattern}\.\d+\.tmp")
"""A file whose writing was interrupted."""
RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True)
class StateLocation:
    """The location of a run's client states, as sent to the nodes.

    ``folder`` is the run directory's folder of states, for virtual clients; a node that is a client
    has its own folder, named ``run_id``. ``starts[a]`` is the round of the checkpoint from which
    attempt a began (0 for the first); ``checkpoints`` are the rounds of the stored checkpoints.
    ``last_used_round`` is, by client, the last round whose result the server used, if there was one.
    """

    run_id: str
    folder: str
    starts: tuple[int, ...]
    checkpoints: tuple[int, ...]
    last_used_round: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class _Entry:
    round: int
    attempt: int
    path: Path


class ClientStates:
    """Reads and writes the states of one node's clients in round ``round_``."""

    def __init__(self, folder: Path, location: StateLocation, round_: int) -> None:
        self.folder = folder
        self.location = location
        self.round = round_

    def read(self, client: int, like: Mapping[str, Tensor]) -> Tensors | None:
        """Return the state of ``client`` after the last round that the server used, or None.

        Raises
        ------
        CheckpointError
            The file is damaged, holds other tensors than ``like``, or is gone.
        """
        if not like:
            return None
        used, last = self._used(client), self.location.last_used_round.get(client, 0)
        newest = max(used, default=None)
        if 0 < last < self.round and (newest is None or newest.round < last):
            raise CheckpointError(
                f"client {client}: its state of round {last}, which the server counts with, is not in "
                f"{self.folder}. Start the node where the folder is (state-path), or restore it."
            )
        if newest is None:
            return None
        tensors = _read(newest.path)
        wanted_layout = {name: (tuple(t.shape), t.dtype) for name, t in like.items()}
        stored_layout = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
        if wanted_layout != stored_layout:
            raise CheckpointError(
                f"state file {newest.path}: holds other tensors than this algorithm and model "
                f"keep. {_FIX}"
            )
        return tensors

    def write(self, client: int, state: Mapping[str, Tensor]) -> None:
        """Write the state of ``client`` after this round, and remove files that no resume can read."""
        if self._is_late(client):
            return
        folder = self.folder / str(client)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = contiguous_copies(dict(sorted(state.items())))
        attempt, round_ = self._now
        path = folder / f"round-{round_:06d}.attempt-{attempt}.safetensors"
        content = safetensors.torch.save(tensors, metadata={"sha256": _digest(tensors)})
        write_atomically(path, content)
        self._prune(client)

    def _is_late(self, client: int) -> bool:
        """Return whether a later client update has written: the server no longer waits for this one."""
        return any((entry.attempt, entry.round) > self._now for entry in self._entries(client))

    @property
    def _now(self) -> tuple[int, int]:
        """The attempt and the round of this client update."""
        return len(self.location.starts) - 1, self.round

    def _prune(self, client: int) -> None:
        used = self._used(client)
        now = [entry for entry in self._valid(client) if entry.round == self.round]
        wanted = {
            max((e for e in (*used, *now) if e.round <= point), default=None)
            for point in (*self.location.checkpoints, self.round - 1, self.round)
        }
        there = self._entries(client)  # once: a later client update may be writing
        if any((entry.attempt, entry.round) > self._now for entry in there):
            return
        for entry in (*there, *self._partial(client)):
            if entry not in wanted:
                entry.path.unlink(missing_ok=True)

    def _used(self, client: int) -> list[_Entry]:
        """Return the files of earlier rounds up to the last that the server used."""
        last = min(self.location.last_used_round.get(client, 0), self.round - 1)
        return [entry for entry in self._valid(client) if entry.round <= last]

    def _valid(self, client: int) -> list[_Entry]:
        """Return the files that are valid: no later attempt began before their round."""
        starts = self.location.starts
        return [
            entry
            for entry in self._entries(client)
            if entry.round <= self.round
            and entry.attempt < len(starts)
            and all(entry.round <= start for start in starts[entry.attempt + 1 :])
        ]

    def _partial(self, client: int) -> list[_Entry]:
        """Return the partially written files of earlier client updates."""
        return [e for e in self._named(client, PARTIAL) if (e.attempt, e.round) < self._now]

    def _entries(self, client: int) -> list[_Entry]:
        return self._named(client, NAME)

    def _named(self, client: int, pattern: re.Pattern[str]) -> list[_Entry]:
        matches = (
            (pattern.fullmatch(p.name), p) for p in (self.folder / str(client)).glob("*round-*")
        )
        return [_Entry(int(match[1]), int(match[2]), path) for match, path in matches if match]


_FIX = (
    "Resume the run from its last checkpoint, or remove the file: the client then goes on from "
    "what it kept before."
)


def _read(path: Path) -> Tensors:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"state file {path}: cannot be read ({error}). {_FIX}") from error
    if expected != _digest(tensors):
        raise CheckpointError(f"state file {path}: is damaged, its SHA-256 is another. {_FIX}")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def node_folder(location: StateLocation, state_path: str) -> Path:
    """Return the folder of the states of a node that is a client.

    It is the folder ``run_id`` under ``state_path`` (node-config ``state-path``), else $FEDAPP_STATE,
    else ~/.local/state/fedapp, readable by this user alone. It may be removed when the run is over.

    Raises
    ------
    ConfigError
        The run id has other characters, or the folder cannot be made.
    """
    if not RUN_ID.fullmatch(location.run_id):
        raise ConfigError(f"state-run = {location.run_id!r}: must be letters, digits and dashes.")
    base = state_path or os.environ.get("FEDAPP_STATE", "~/.local/state/fedapp")
    folder = as_path(base, f"state-path = {base!r}") / location.run_id
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"state-path = {base!r}: {folder} cannot be made ({error.strerror}). Start the "
            "SuperNode with --node-config 'state-path=\"FOLDER\"' and a folder that it may write."
        ) from error
    return folder


def shared_folder(location: StateLocation) -> Path:
    """Return the folder of virtual clients' states, in the run directory.

    Raises
    ------
    ConfigError
        This node does not see the run directory.
    """
    folder = Path(location.folder)
    if not folder.is_dir():
        raise ConfigError(
            f"run-dir: this node does not see {folder}, where the virtual clients of an algorithm "
            "with state keep it. Set run-dir to a folder that the server and every node share."
        )
    return folder
