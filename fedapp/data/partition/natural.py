"""The clients that the data name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.config.run_config import RunConfig
from fedapp.data.dataset import Examples, Partition, from_index_sets
from fedapp.data.partition.partitioning import BY, PURPOSE, Partitioning, by_owner, index_sets
from fedapp.data.readers.source import CLIENT_NAMES, column_named, is_index
from fedapp.errors import ConfigError
from fedapp.seeds import generator


class Natural(Partitioning):
    """One client for each author, role or other id in a column of the data.

    Split by ``NaturalIdPartitioner`` of flwr-datasets: clients are numbered in the order of their
    sorted ids, and a client has its examples in the order of the data. A client's test examples are
    those with its id: Shakespeare's last 20 % of a role's lines (McMahan et al. 2017, section 3).
    Table 2's "balanced and IID" Shakespeare over the same clients is ``iid`` with the same
    num-clients.
    """

    name: ClassVar[str] = "natural"
    cached: ClassVar[bool] = True

    column: str = Field(
        "",
        description="Column of client ids. Empty: client-key, client_id, or the only one there is.",
    )

    def config_errors(self, config: RunConfig) -> Iterator[str]:
        """Yield the error of two columns: "client_id" is also what the column of client-key is called."""
        if self.column == "client_id" and config.client_key not in ("", self.column):
            yield (
                f"natural.column = 'client_id': the clients are in client-key = {config.client_key!r}. "
                "Leave natural.column out for these, or set client-key='client_id'."
            )

    def split(self, examples: Examples, num_clients: int, seed: int) -> Partition:
        """Return the examples of each id, or of K ids drawn at random where there are more.

        Raises
        ------
        ConfigError
            There is no such column, or it has fewer ids than ``num_clients``.
        """
        from flwr_datasets.partitioner import NaturalIdPartitioner

        values = self._values(examples)
        ids = self._sampled_ids(self.named_clients(examples), num_clients, seed)
        sets = index_sets(NaturalIdPartitioner(BY), values)
        return from_index_sets([sets[k] for k in ids])

    def split_test(
        self, test: Examples, train: Examples, partition: Partition, seed: int
    ) -> Partition | None:
        """Return the test examples with each client's id; a client may have none."""
        ids = self._values(train)[partition.indices[partition.offsets[:-1]]]
        return by_owner(_positions(self._values(test), ids), partition.num_clients)

    def named_clients(self, examples: Examples) -> int:
        """Return the number of ids in the column."""
        return len(np.unique(self._values(examples)))

    def _values(self, examples: Examples) -> NDArray[Any]:
        columns = examples.groups
        self._refuse_left_out(examples)
        ids = [name for name in columns if not is_index(name)]
        if not (columns if self.column else ids):
            named = f" {self.column!r} (natural.column)" if self.column else ""
            raise ConfigError(
                f"partitioner = 'natural': the data set has no column{named} of client ids. Set "
                "client-key to the column of a table or of texts that has them, or choose another "
                "partitioner, for example partitioner='iid'."
            )
        column = column_named(self.column, columns) or ("client_id" if "client_id" in ids else "")
        if not column and len(ids) == 1:
            column = ids[0]
        if column not in columns:
            raise ConfigError(
                f"natural.column = {self.column!r}: must be one of the data set's columns "
                f"{', '.join(sorted(columns))}."
            )
        return columns[column]

    def _refuse_left_out(self, examples: Examples) -> None:
        """Refuse a column of ids that the data have, but not in a form that can be used."""
        usual = () if "client_id" in examples.groups else CLIENT_NAMES
        named = (column_named(self.column, examples.left_out),)
        for name in named if self.column else usual:
            if fault := examples.left_out.get(name):
                key = "natural.column =" if self.column else "partitioner = 'natural': column"
                raise ConfigError(f"{key} {name!r}: {fault}")

    def _sampled_ids(self, num_ids: int, num_clients: int, seed: int) -> NDArray[np.int64]:
        """Return the positions of the clients among the sorted ids: [K], ascending."""
        if num_clients > num_ids:
            raise ConfigError(
                f"num-clients = {num_clients}: the data have only {num_ids} natural clients. "
                f"Set num-clients to {num_ids} or less."
            )
        if num_clients == num_ids:
            return np.arange(num_ids)
        return np.sort(generator(seed, PURPOSE).permutation(num_ids)[:num_clients])


def _positions(values: NDArray[Any], ids: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position in ``ids`` of each value [n], or -1."""
    position = np.minimum(np.searchsorted(ids, values), len(ids) - 1)
    return np.where(ids[position] == values, position, -1)
