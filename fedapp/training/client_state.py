"""What clients keep between their turns: files named (client, round), never ``Context.state``.

``<folder>/<client>/round-000012.attempt-0.safetensors`` is what the client kept after its turn in
round 12. An attempt is one start of the server: resuming a run from its checkpoint of round c
begins the next attempt, and what earlier attempts wrote after round c no longer counts. Nor does
what a turn left behind of which the server did not use the reply (late, refused, not needed): the
server's part of the state knows nothing of it, and SCAFFOLD's c, say, would no longer be the mean
of the c_k. So each order names the round of a client's last turn that counted, and a client reads
the newest file up to that; running a round again gives the same.

Of a client's files, those stay that are still of use: the newest, the last that counted (should the
newest not), and the newest up to each checkpoint that is kept. A late turn, which ends when a later one
has been taken elsewhere or the server has been started again, keeps and removes nothing.
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
from fedapp.files import write_atomically
from fedapp.training.tensors import Tensors

NAME = re.compile(r"round-(\d+)\.attempt-(\d+)\.safetensors")
HALF = re.compile(rf"\.{NAME.pattern}\.\d+\.tmp")
"""What a turn leaves behind that was killed while it wrote."""
RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True)
class StateLocation:
    """What the server tells the nodes about the states of this run.

    ``folder`` is the run directory's folder of states, for virtual clients; a node that is a
    client keeps its own, under the name ``run_id``. ``starts[a]`` is the round of the checkpoint
    from which attempt a began (0 for the first); ``checkpoints`` are the rounds of those kept.
    ``last_used_round`` is the round of the last turn of each client asked whose result the server used.
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
    """Reads and writes the states of the clients of one node, in the round ``round_``."""

    def __init__(self, folder: Path, location: StateLocation, round_: int) -> None:
        self.folder = folder
        self.location = location
        self.round = round_

    def read(self, client: int, like: Mapping[str, Tensor]) -> Tensors | None:
        """Return what ``client`` kept from its last turn that counted, or None if none did.

        Raises
        ------
        CheckpointError
            The file is damaged, or holds other tensors than ``like``.
        """
        earlier = self._counted(client)
        if not earlier:
            return None
        tensors = _read(max(earlier).path)
        mine = {name: (tuple(t.shape), t.dtype) for name, t in like.items()}
        theirs = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
        if mine != theirs:
            raise CheckpointError(
                f"state file {max(earlier).path}: holds other tensors than this algorithm and model "
                f"keep. {_FIX}"
            )
        return tensors

    def write(self, client: int, state: Mapping[str, Tensor]) -> None:
        """Write what ``client`` keeps after this round, and remove what no resume can read."""
        if self._is_late(client):
            return
        folder = self.folder / str(client)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: t.detach().cpu().contiguous() for name, t in sorted(state.items())}
        attempt, round_ = self._now
        path = folder / f"round-{round_:06d}.attempt-{attempt}.safetensors"
        content = safetensors.torch.save(tensors, metadata={"sha256": _digest(tensors)})
        write_atomically(path, content)
        self._prune(client)

    def _is_late(self, client: int) -> bool:
        """Return whether a later turn has been taken: the server does not wait for this one."""
        return any((entry.attempt, entry.round) > self._now for entry in self._entries(client))

    @property
    def _now(self) -> tuple[int, int]:
        """The attempt and the round of this turn."""
        return len(self.location.starts) - 1, self.round

    def _prune(self, client: int) -> None:
        last_used_round = self._counted(client)
        now = [entry for entry in self._living(client) if entry.round == self.round]
        wanted = {
            max((e for e in (*last_used_round, *now) if e.round <= point), default=None)
            for point in (*self.location.checkpoints, self.round - 1, self.round)
        }
        if self._is_late(client):
            return
        for entry in (*self._entries(client), *self._half_written(client)):
            if entry not in wanted:
                entry.path.unlink(missing_ok=True)

    def _counted(self, client: int) -> list[_Entry]:
        """Return the files of earlier rounds up to the client's last turn that counted."""
        last = min(self.location.last_used_round.get(client, 0), self.round - 1)
        return [entry for entry in self._living(client) if entry.round <= last]

    def _living(self, client: int) -> list[_Entry]:
        """Return the files that no later attempt has left behind, having begun before their round."""
        starts = self.location.starts
        return [
            entry
            for entry in self._entries(client)
            if entry.round <= self.round
            and entry.attempt < len(starts)
            and all(entry.round <= start for start in starts[entry.attempt + 1 :])
        ]

    def _half_written(self, client: int) -> list[_Entry]:
        """Return what earlier turns did not finish writing."""
        return [e for e in self._named(client, HALF) if (e.attempt, e.round) < self._now]

    def _entries(self, client: int) -> list[_Entry]:
        return self._named(client, NAME)

    def _named(self, client: int, pattern: re.Pattern[str]) -> list[_Entry]:
        found = (
            (pattern.fullmatch(p.name), p) for p in (self.folder / str(client)).glob("*round-*")
        )
        return [_Entry(int(match[1]), int(match[2]), path) for match, path in found if match]


_FIX = (
    "Resume the run from its last checkpoint, or remove the file: the client then goes on from "
    "what it kept before."
)


def _read(path: Path) -> Tensors:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            noted = (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"state file {path}: cannot be read ({error}). {_FIX}") from error
    if noted != _digest(tensors):
        raise CheckpointError(f"state file {path}: is damaged, its SHA-256 is another. {_FIX}")
    return tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def node_folder(location: StateLocation, state_path: str) -> Path:
    """Return where a node that is a client keeps its states of this run.

    Under ``state_path`` (node-config ``state-path``), else $FEDAPP_STATE, else
    ~/.local/state/fedapp; in a folder of the run's own, for this user alone, which may be removed when
    the run is over.

    Raises
    ------
    ConfigError
        The server's name of the run is no plain name, or the folder cannot be made.
    """
    if not RUN_ID.fullmatch(location.run_id):
        raise ConfigError(f"state-run = {location.run_id!r}: must be letters, digits and dashes.")
    base = state_path or os.environ.get("FEDAPP_STATE", "~/.local/state/fedapp")
    folder = Path(base).expanduser() / location.run_id
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
