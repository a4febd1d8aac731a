"""The clients of each round and their nodes, as far as nodes are connected and not busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedapp.config.federation import participants
from fedapp.config.registry import calling, setting_of
from fedapp.config.run_config import RunConfig
from fedapp.errors import ConfigError, RunError
from fedapp.federation.callback import ServerState
from fedapp.federation.delivery import Delivery
from fedapp.federation.faults import KINDS, Fault
from fedapp.federation.nodes import Cohort, Nodes
from fedapp.federation.samplers.sampler import Candidates, Sampler, prepared_sampler
from fedapp.federation.sampling import distribute, over_selected
from fedapp.training.algorithm import Algorithm

BUSY_SECONDS = 0.5
"""Pause before a round that waits for busy nodes looks again."""

NODE_BUSY = Fault("busy", KINDS["busy"])
NODE_GONE = Fault("lost", "its node is not connected, and was not asked")

WAITING = "Round %d: waiting: %d clients of %d could be asked, and min-replies = %d"


def assign(
    nodes: Nodes, clients: Sequence[int], available: Sequence[int], busy: Collection[int]
) -> list[Cohort]:
    """Return the cohorts of the available nodes that are not busy.

    Virtual clients are distributed over these nodes. Of clients that are nodes themselves, those whose
    node is busy or no longer connected are left out.
    """
    if not nodes.virtual:
        known = set(nodes.clients)
        pairs = [(nodes.node_of(client), [client]) for client in clients if client in known]
        return [(node, cohort) for node, cohort in pairs if node not in busy]
    idle = [node for node in available if node not in busy]
    cohorts = distribute(clients, nodes.sizes(clients), len(idle)) if idle else []
    return list(zip(idle, cohorts, strict=False))


def checked_sample(sampler: Sampler, sampled: Any, candidates: Candidates) -> list[int]:
    """Return the clients that a sampler returned, in ascending order.

    Raises
    ------
    ConfigError
        They are no list, are not among the candidates, or one is there twice.
    """
    clients, problem = candidates.clients, ""
    known = clients if isinstance(clients, range) else set(clients)
    if not isinstance(sampled, Sequence | np.ndarray):
        found = "None" if sampled is None else f"a {type(sampled).__name__}"
        problem = f"{found}, and must return a list of clients"
    elif unknown := [k for k in sampled if not isinstance(k, int | np.integer) or k not in known]:
        ids = f"{clients[0]} to {clients[-1]}" if len(clients) else "none"
        problem = f"{unknown[0]!r}, which is none of the {len(clients)} candidates ({ids})"
    elif len(set(sampled)) < len(sampled):
        twice = next(k for k in sampled if list(sampled).count(k) > 1)
        problem = f"client {twice} twice"
    if problem:
        raise ConfigError(
            f"{setting_of(sampler)}: sample returns {problem}, in round {candidates.round}. Let it "
            "return each of its clients once, as they are in candidates.clients."
        )
    return sorted(map(int, sampled))


class ClientSampler:
    """Samples the clients of each round, statelessly, and assigns them to nodes.

    ``losses`` asks clients for their training loss, and returns also the bytes of its messages;
    ``bytes_asked`` are those of the last round. A private run samples from the ``population`` with
    which it began (None: all clients).
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        nodes: Nodes,
        delivery: Delivery,
        population: Sequence[int] | None,
        losses: Callable[[Grid, Sequence[int], ServerState], tuple[Mapping[int, float], int]],
    ) -> None:
        self.config = config
        self.algorithm = algorithm
        self.nodes = nodes
        self.sampler = prepared_sampler(config)
        self._delivery = delivery
        self._population = population
        self._losses = losses
        self.bytes_asked = 0

    @property
    def population(self) -> Sequence[int]:
        """The clients that a round samples from: K of them."""
        return self.nodes.clients if self._population is None else self._population

    def sample(
        self, round_: int, grid: Grid | None = None, state: ServerState | None = None
    ) -> list[int]:
        """Return S_t of the clients known now; without grid and state nobody is asked for a loss.

        Raises
        ------
        ConfigError
            The sampler raises, or returns no clients of these.
        """
        config, clients = self.config, self.population

        def losses(asked: Sequence[int]) -> Mapping[int, float]:
            found, self.bytes_asked = (
                self._losses(grid, asked, state) if grid and state else ({}, 0)
            )
            return found

        candidates = Candidates(
            config.seed,
            round_,
            clients,
            config.fraction_train,
            over_selected(config.fraction_train, len(clients), config.over_selection),
            lambda: self.algorithm.sampling_generator(config.seed, round_),
            self._sizes,
            losses,
        )
        with calling(self.sampler, "sample"):
            sampled = self.sampler.sample(candidates)
        return checked_sample(self.sampler, sampled, candidates)

    def _sizes(self, clients: Sequence[int]) -> Mapping[int, int]:
        """Return n_k of each of ``clients``, 0 of one of the population that is not connected."""
        if self._population is None:
            return self.nodes.sizes(clients)
        known = set(self.nodes.clients)
        absent = dict.fromkeys((client for client in clients if client not in known), 0)
        return self.nodes.sizes([client for client in clients if client in known]) | absent

    def assign_round(
        self, round_: int, grid: Grid, state: ServerState
    ) -> tuple[list[int], list[Cohort]]:
        """Return S_t and its cohorts; clients of busy nodes are in S_t alone.

        Waits while fewer than ``min-replies`` clients can be asked, since the round could not change
        the model. Virtual clients are known from the start; clients that are nodes may still connect.
        After ``node-timeout`` a round of a fixed population has those that are there, and the next one
        samples others.

        Raises
        ------
        RunError
            So few clients are connected for longer than ``node-timeout``.
        """
        end, needed = time.monotonic() + self.config.node_timeout, self.config.min_replies
        is_logged = False
        population, sampled = None, list[int]()
        while True:
            available = self.nodes.available(grid)
            clients = self.nodes.clients
            if population != self.population:
                population = self.population
                sampled = self.sample(round_, grid, state)
            connected = sampled if self.nodes.virtual else [k for k in sampled if k in clients]
            busy = self._delivery.busy(available)
            cohorts = assign(self.nodes, connected, available, busy)
            num_assigned = sum(len(cohort) for _, cohort in cohorts)
            is_late = time.monotonic() > end
            goes_on = is_late and self._population is not None
            may_be_few = self.sampler.may_be_few or self.nodes.virtual or goes_on
            if num_assigned >= (min(needed, len(connected)) if may_be_few else needed):
                return sampled, cohorts
            if len(sampled) < needed and is_late:
                raise RunError(
                    f"min-replies = {needed}: with {len(clients)} clients connected, {len(sampled)} are "
                    f"asked in round {round_}, and no more came within node-timeout = "
                    f"{self.config.node_timeout:g} s. Start more SuperNodes, raise fraction-train or "
                    "node-timeout, or lower min-replies."
                )
            if not is_logged:
                log(WARNING, WAITING, round_, num_assigned, len(clients), needed)
                is_logged = True
            time.sleep(BUSY_SECONDS)
            self._delivery.drop_late(grid)

    def wanted(self, sampled: Sequence[int]) -> int:
        """Return the accepted clients after which no others are waited for: with over-selection m."""
        if not self.config.over_selection:
            return len(sampled)
        return min(participants(self.config.fraction_train, len(self.population)), len(sampled))

    def unassigned(self, sampled: Collection[int], assigned: Collection[int]) -> dict[int, Fault]:
        """Return why sampled clients were not assigned to a node."""
        known = self.nodes.clients
        missing = sorted(set(sampled) - set(assigned))
        return {client: NODE_BUSY if client in known else NODE_GONE for client in missing}
