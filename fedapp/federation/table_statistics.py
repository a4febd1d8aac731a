"""The statistics of a table that nodes hold in parts: collected from their answers, and pooled once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedapp.data.table import Numbers, Statistics, Summary, Table, unknown_labels
from fedapp.errors import DataError


class TableStatistics:
    """The summaries of the nodes' tables, and the ``pooled`` statistics with which all code theirs.

    Where the statistics are given, nodes send no summary.
    """

    def __init__(self, table: Table | None) -> None:
        self.table = table
        self.pooled: Statistics | None = None
        self._summaries: dict[int, Summary] = {}

    def add_to(self, content: RecordDict) -> RecordDict:
        """Return the content of a request with the pooled statistics, if there are any."""
        if self.pooled is not None:
            content["table"] = ConfigRecord({"statistics": self.pooled.to_json()})
        return content

    def mismatches(self, node: int, answer: Mapping[str, Any]) -> Iterator[str]:
        """Keep the summary in a node's answer; yield why it does not fit the pooled statistics.

        Raises
        ------
        DataError
            The summary is malformed.
        """
        if self.table is None or (self.pooled is not None and "table" not in answer):
            return
        summary = Summary.read(self.table, answer.get("table", ""))
        numbers = [each for each in summary.columns.values() if isinstance(each, Numbers)]
        if any(each.count > answer.get("examples", 0) for each in numbers):
            raise DataError("the statistics of its table count more values than it has examples")
        self._summaries[node] = summary
        if self.pooled is None:
            return
        if unknown := unknown_labels(self.pooled, summary.labels, summary.num_classes):
            yield f"labels {unknown} are not among those that the run began with"

    def pool(
        self, nodes: Collection[int], own: Summary, node_name: Callable[[int], str] = str
    ) -> Statistics:
        """Return the statistics of the training examples of ``nodes``, with the server's labels, too.

        ``own`` is the summary of the server's data.

        Raises
        ------
        DataError
            A column has too many values, or there are too many labels.
        """
        parts = [self._summaries[node] for node in sorted(nodes)]
        owners = [f"Node {node_name(node)}" for node in sorted(nodes)]
        pooled = Summary.pooled(parts, owners)
        labels = Summary.pooled([*parts, own], [*owners, "The server"])
        pooled = replace(pooled, labels=labels.labels, num_classes=labels.num_classes)
        self.pooled = pooled.statistics()
        return self.pooled


def statistics_in(content: RecordDict) -> str:
    """Return the statistics in the content of a request, or ""."""
    record = content.config_records.get("table")
    return "" if record is None else str(record["statistics"])
