"""The record of a run: its settings and curves, as JSON."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Sequence
from itertools import accumulate, compress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from fedapp.analysis.curves import rounds_to_target
from fedapp.config.settings import Scalar
from fedapp.errors import FedappError
from fedapp.federation.callback import RoundMetrics
from fedapp.runs.directory import RunDirectory
from fedapp.runs.metrics import read_metrics, wall_seconds
from fedapp.studies.sweep.identity import Request

Status = Literal["complete", "diverged", "failed"]
DIGITS = 6
SOURCES = "sources"
"""The key of ``execution`` with digests of the components' code at the start of the run."""
TOTALS = ("updates", "bytes_down", "bytes_up", "seconds")
"""Numbers of a record over all rounds, which it also has up to each evaluated round."""
CURVES = (
    *("rounds", "accuracy", "loss", "train_loss", "training_set_loss", "gradients"),
    *(f"{key}_until" for key in TOTALS),
)
"""Fields of a record with an entry for each evaluated round."""


class RunRecord(BaseModel):
    """The rounds of a run so far; lists have an entry for each evaluated round, None for nan.

    ``train_loss`` is the clients' mean with their weights; ``training_set_loss`` is the global model's,
    with ``eval-train-examples``; ``gradients`` counts the mini-batch gradients of all clients up to the
    round; ``updates`` is u, averaged over the rounds; ``bytes_down`` and ``bytes_up`` are the mean bytes
    a round to and from one node; ``seconds`` is the wall time of all rounds; ``..._until`` are these
    four up to each evaluated round (records of earlier versions do not have them, and have the totals of
    the whole run when cut). With ``record-updates``, ``agreement`` has the cosine similarities of updates
    and the clients' losses of each recorded round.
    """

    model_config = ConfigDict(extra="forbid")

    run: str
    settings: dict[str, Scalar]
    status: Status
    problem: str = ""
    rounds: list[int] = []
    accuracy: list[float | None] = []
    loss: list[float | None] = []
    train_loss: list[float | None] = []
    training_set_loss: list[float | None] = []
    gradients: list[int] = []
    updates: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    updates_until: list[float] = []
    bytes_down_until: list[int] = []
    bytes_up_until: list[int] = []
    seconds_until: list[float] = []
    agreement: list[RoundMetrics] = []
    execution: dict[str, Any] = {}

    @property
    def published(self) -> RunRecord:
        """The record without the digests of the code."""
        execution = {key: value for key, value in self.execution.items() if key != SOURCES}
        return self.model_copy(update={"execution": execution})

    @property
    def commit(self) -> str:
        """The commit of the code, with ``-dirty`` if it had changes; "" if it is not known."""
        return str(self.execution.get("commit") or "")

    @property
    def last_round(self) -> int:
        """The last evaluated round."""
        return self.rounds[-1] if self.rounds else 0

    def until(self, request: Request) -> RunRecord:
        """Cut the record to the rounds that ``request`` asks for.

        The result does not depend on how far other requests continued the run, nor on where shorter
        ones ended: of the rounds between those of ``eval-every`` it has the last alone. That one has no
        scores if the run had already gone further when it was asked for.
        """
        chosen = self._chosen(request)
        cut = {key: list(compress(getattr(self, key), chosen)) for key in CURVES}
        last = max(cut["rounds"], default=0)
        if last == self.last_round and not self._went_on(request):
            return self.model_copy(update=cut)
        for key in TOTALS:
            if until := cut[f"{key}_until"]:
                cut[key] = until[-1]
        cut["agreement"] = [row for row in self.agreement if row["round"] <= last]
        return self.model_copy(update={**cut, "status": "complete", "problem": ""})

    def _chosen(self, request: Request) -> list[bool]:
        """Return which evaluated rounds ``request`` asks for, up to the first that reaches its target."""
        every = int(self.settings.get("eval-every", 1)) or math.inf
        last = self.last_round if self._has_ended else request.rounds
        chosen, reached = list[bool](), False
        for round_, accuracy in zip(self.rounds, self.accuracy, strict=True):
            due = round_ % every == 0 or round_ in (request.rounds, last)
            chosen.append(due and round_ <= request.rounds and not reached)
            reached |= chosen[-1] and _reaches(accuracy, request)
        return chosen

    def _has_reached(self, request: Request) -> bool:
        """Return whether one of the rounds of ``request`` reaches its target."""
        return any(
            _reaches(value, request) for value in compress(self.accuracy, self._chosen(request))
        )

    @property
    def _has_ended(self) -> bool:
        """Whether the run failed, diverged or ended before its rounds."""
        return self.status != "complete" or bool(self.problem)

    def _went_on(self, request: Request) -> bool:
        """Return whether the problem came after the rounds of ``request``, when they were continued."""
        if not (self.problem and self.rounds):
            return False
        whole = self.last_round >= request.rounds or self._has_reached(request)
        match = re.match(r"round (\d+): ", self.problem)
        return whole and (match is None or int(match[1]) > self.last_round)

    def satisfies(self, request: Request) -> bool:
        """Return whether the run has the rounds of ``request``, or failed, diverged or ended before."""
        done = self._has_ended or self.last_round >= request.rounds
        return done or self._has_reached(request)

    @property
    def best_accuracy(self) -> float:
        """The best test accuracy; 0 if there is none."""
        return max((value for value in self.accuracy if value is not None), default=0.0)

    def final_accuracy(self, window: int = 1) -> float:
        """Return the mean test accuracy of the last ``window`` evaluated rounds; 0 if it diverged."""
        last = [value for value in self.accuracy[-window:] if value is not None]
        return sum(last) / len(last) if last and self.status == "complete" else 0.0

    @property
    def has_accuracy(self) -> bool:
        """Whether an accuracy was measured; a regression and a quadratic have a test loss alone."""
        return any(value is not None for value in self.accuracy)

    @property
    def final_loss(self) -> float | None:
        """The last test loss, or None."""
        return self.loss[-1] if self.loss else None

    def rounds_to(self, target: float) -> float | None:
        """Return the rounds to ``target`` (McMahan et al. 2017, section 3), or None."""
        return rounds_to_target(self.rounds, self.accuracy, target)


def _reaches(accuracy: float | None, request: Request) -> bool:
    return bool(request.target) and (accuracy or 0.0) >= request.target


def problem_of(record: RoundMetrics) -> tuple[Status, str]:
    """Return whether training can continue after a round, and the reason if not.

    Training diverged if all updates are rejected as not finite or too large, or the test loss is not
    finite. If the model did not change for another reason, or nobody evaluated it, the run failed.
    """
    if "test_loss" in record and not _is_finite(record["test_loss"]):
        if record.get("client_clients") == 0:
            return (
                "failed",
                f"round {record['round']}: no client evaluated the model, as its log says",
            )
        return "diverged", f"round {record['round']}: the test loss is not finite"
    if record.get("model_changed", True):
        return "complete", ""
    reason = next(iter(record.get("failures", {}).values()), "no client replied")
    kinds = set(record.get("faults", {}))
    if "not finite" in reason or (kinds and kinds <= {"norm", "not-finite"}):
        return "diverged", f"round {record['round']}: {reason.removeprefix('arrays: ')}"
    return "failed", f"round {record['round']}: {reason}"


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def read_record(request: Request, folder: Path) -> RunRecord:
    """Return the record of the run in ``folder`` so far, from its metrics."""
    rows = read_metrics(RunDirectory(folder).metrics)
    trained = [row for row in rows if row["round"] > 0]
    problems = [state for row in rows if (state := problem_of(row))[0] != "complete"]
    status, problem = problems[0] if problems else ("complete", "")
    gradients = dict(
        zip((r["round"] for r in trained), accumulate(r["steps"] for r in trained), strict=True)
    )
    scored = [row for row in rows if _is_scored(row)]
    return RunRecord(
        run=request.run,
        settings=request.canonical,
        status=status,
        problem=problem,
        rounds=[row["round"] for row in scored],
        accuracy=[_short(row.get("test_accuracy")) for row in scored],
        loss=[_short(row.get("test_loss")) for row in scored],
        train_loss=[_short(row.get("train_loss")) for row in scored],
        training_set_loss=[
            _short(row["training_set_loss"]) for row in scored if "training_set_loss" in row
        ],
        gradients=[gradients.get(row["round"], 0) for row in scored],
        **_totals(rows),
        agreement=[_similarity_row(row) for row in trained if "similarity" in row],
        execution=_execution(folder),
    )


def failed_run(request: Request, folder: Path, problem: str) -> RunRecord:
    """Return the record of a failed run, with its earlier rounds if they can be read."""
    with contextlib.suppress(FedappError, OSError, ValueError, KeyError):
        failure = {"status": "failed", "problem": problem}
        return read_record(request, folder).model_copy(update=failure)
    return RunRecord(run=request.run, settings=request.canonical, status="failed", problem=problem)


def _similarity_row(row: RoundMetrics) -> RoundMetrics:
    return {key: row[key] for key in ("round", "similarity", "client_train_loss") if key in row}


def _execution(folder: Path) -> dict[str, Any]:
    """Return device, trainer, versions and digests of the components' code."""
    stored = json.loads(RunDirectory(folder).config.read_text())
    config, run_info = stored["config"], stored["found"]
    used = {"device": run_info.get("device"), "trainer": run_info.get("trainer", config["trainer"])}
    sources = {SOURCES: stored["found"][SOURCES]} if SOURCES in stored["found"] else {}
    return {**used, **stored["versions"], **sources}


def _short(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if _is_finite(value) and value is not None else None


def _totals(rows: Sequence[RoundMetrics]) -> dict[str, Any]:
    """Return ``TOTALS`` over all rounds and up to each evaluated round."""
    trained = [row if row["round"] > 0 else {} for row in rows]
    after: dict[str, list[Any]] = {
        "updates": _running_means([row.get("updates") for row in trained]),
        "bytes_down": list(map(round, _running_means([row.get("bytes_down") for row in trained]))),
        "bytes_up": list(map(round, _running_means([row.get("bytes_up") for row in trained]))),
        "seconds": [round(seconds, 2) for seconds in accumulate(map(wall_seconds, rows))],
    }
    scored = [_is_scored(row) for row in rows]
    until = {f"{key}_until": list(compress(values, scored)) for key, values in after.items()}
    return {**until, **{key: values[-1] for key, values in after.items() if values}}


def _running_means(values: Sequence[float | None]) -> list[float]:
    """Return the mean of the known values up to each index; 0 if none is known."""
    sums = accumulate(value or 0.0 for value in values)
    counts = accumulate(int(value is not None) for value in values)
    return [total / count if count else 0.0 for total, count in zip(sums, counts, strict=True)]


def _is_scored(row: RoundMetrics) -> bool:
    return "test_accuracy" in row or "test_loss" in row
