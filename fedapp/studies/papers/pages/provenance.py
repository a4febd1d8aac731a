"""From which code the runs of a page were made, as far as their records say."""

from __future__ import annotations

from collections import Counter

from fedapp.studies.papers.results import Results
from fedapp.studies.sweep.archive import Archive

CLEAN = "from a commit as it is"
KINDS = (
    CLEAN,
    "from a commit with changes",
    "from code that their record does not name",
    "without a record",
)


def provenance(results: Results, archive: Archive) -> str:
    """Say how many of the runs whose numbers are shown are from a clean commit; "" if all are.

    The runs are those of the chosen candidates, not all that a search tried.
    """
    runs = {run.run for cell in results.cells.values() for run in cell.runs}
    found = Counter(_kind(run, archive) for run in runs)
    if found[CLEAN] == len(runs):
        return ""
    said = ", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind] or kind == CLEAN)
    return f"Of the {len(runs)} runs whose numbers are shown: {said}."


def _kind(run: str, archive: Archive) -> str:
    record = archive.find(run)
    if record is None:
        return KINDS[3]
    commit = str(record.execution.get("commit") or "")
    if not commit:
        return KINDS[2]
    return KINDS[1] if commit.endswith("-dirty") else CLEAN
