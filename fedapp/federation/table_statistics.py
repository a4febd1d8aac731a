"""The statistics of a table that nodes hold in parts: collected from their answers, and pooled once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedapp.data.table import Statistics, Summary, Table, unknown_labels


class TableStatistics:
    """The summaries of the nodes' tables, and the ``pooled`` statistics with which all code theirs.

    Where the statistics are given, nodes send no summary.
    """

    def __init__(self, table: Table | None) -> None:
        self.table = table
        self.pooled: Statistics | None = None
        self._summaries: dict[int, Summary] = {}

    def mismatches(self, node: int, answer: Mapping[str, Any]) -> Iterator[str]:
        """Keep the summary in a node's answer; yield why it does not fit the pooled statistics.

        Raises
        ------
        DataError
            The summary is malformed.
        """
        if self.table is None or (self.pooled is not None and "table" not in answer):
            return
        summary = self._summaries[node] = Summary.read(self.table, answer.get("table", ""))
        if self.pooled is None:
            return
        if unknown := unknown_labels(self.pooled, summary.labels, summary.num_classes):
            yield f"labels {unknown} are not among those that the run began with"

    def pool(self, nodes: Collection[int], own: Summary) -> Statistics:
        """Return the statistics of the training examples of ``nodes``, with the server's labels, too.

        ``own`` is the summary of the server's data.
        """
        parts = [self._summaries[node] for node in sorted(nodes)]
        labels = Summary.pooled([*parts, own])
        pooled = replace(
            Summary.pooled(parts), labels=labels.labels, num_classes=labels.num_classes
        )
        self.pooled = pooled.statistics()
        return self.pooled
