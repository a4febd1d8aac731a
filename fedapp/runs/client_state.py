"""The run directory's part in what clients keep: a folder, a name for the run, and its attempts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from fedapp.errors import CheckpointError
from fedapp.files import write_json
from fedapp.runs.checkpoint import kept_rounds
from fedapp.runs.directory import RunDirectory
from fedapp.training.client_state import StateLocation

FORMAT = 2
"""In 1, checkpoints did not say which turns of the clients counted."""


def open_states(
    directory: RunDirectory, round_: int, *, resumed: bool
) -> Callable[[], StateLocation]:
    """Begin an attempt at round ``round_`` and return what gives each round's order to the nodes.

    ``client-states/attempts.json`` holds the run's name and the round from which each start of the
    server went on; ``client-states/<client>/`` what virtual clients keep.

    Raises
    ------
    CheckpointError
        The run is resumed, and the file is missing or damaged.
    """
    folder = directory.path / "client-states"
    folder.mkdir(exist_ok=True)
    file = folder / "attempts.json"
    run_id, starts = _read(directory) if resumed else (uuid.uuid4().hex, [])
    starts.append(round_)
    write_json(file, {"format": FORMAT, "run": run_id, "starts": starts})

    def order() -> StateLocation:
        checkpoints = kept_rounds(directory.checkpoints)
        return StateLocation(run_id, str(folder), tuple(starts), tuple(checkpoints))

    return order


def _read(directory: RunDirectory) -> tuple[str, list[int]]:
    file = directory.path / "client-states" / "attempts.json"
    try:
        noted = json.loads(file.read_text())
        if (format_ := noted["format"]) != FORMAT:
            raise ValueError(f"its format is {format_!r}, not {FORMAT}")
        return str(noted["run"]), [int(start) for start in noted["starts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error!r}), so it is not known what the clients keep. Put the "
            "file back, or start a new run."
        ) from error
