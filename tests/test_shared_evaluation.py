"""The server's evaluation, shared among nodes: the numbers of the server alone."""

import math

import pytest
import torch

from fedapp.client_app import app as client_app
from fedapp.config.read import read_config
from fedapp.data.node_data import read_node_data
from fedapp.engines.in_process import InlineGrid
from fedapp.federation.shared_evaluation import COLUMNS, PART, is_part
from fedapp.training.build import initial_parameters, make_score
from fedapp.training.evaluation import score_of
from tests.in_process import SMALL, metrics, run


class SharingGrid(InlineGrid):
    """Nodes in this process that share the evaluation; their replies come in reverse order."""

    shares_evaluation = True

    def pull_messages(self, message_ids):
        return super().pull_messages(sorted(message_ids)[-1:])


def test_the_score_of_sums():
    score = score_of(torch.tensor([[3.0, 1.0, 2.0], [1.0, 0.0, 2.0]], dtype=torch.float64))
    assert (score.loss, score.accuracy, score.count) == (1.0, 0.25, 4)
    assert math.isnan(score_of(torch.zeros(2, 3)).loss)


SETTINGS = {"eval_train_examples": 1200, "2nn.hidden": 8}


@pytest.mark.parametrize(
    ("nodes", "parts"), [(2, [[0, 2], [1]]), (3, [[0], [1], [2]]), (5, [[0], [1], [2]])]
)
def test_nodes_share_the_batches(tmp_path, nodes, parts):
    """Test data of one batch, training data of two: five nodes have no more than three parts."""
    asked = []

    def call(message, context):
        if is_part(message.content):
            asked.append(list(message.content[PART]["batches"]))
        return client_app(message, context)

    shared = run(tmp_path / "shared", nodes, call, SharingGrid, **SETTINGS)
    assert sorted(asked) == sorted(parts * (SMALL["num-server-rounds"] + 1))
    assert metrics(shared) == metrics(run(tmp_path / "alone", nodes, **SETTINGS))


@pytest.mark.parametrize(
    ("node", "damage"),
    [
        (2, "raises"),
        (2, "missing"),
        (2, "unequal columns"),
        (2, "two sums for one batch"),
        (1, "one sum for two batches"),
        (2, "other batches"),
    ],
)
def test_the_server_evaluates_what_a_node_does_not(tmp_path, node, damage):
    """Node 1 has two batches, node 2 has one; a single sum would else count for both."""
    damaged = []

    def call(message, context):
        if not is_part(message.content) or context.node_id != node:
            return client_app(message, context)
        damaged.append(damage)
        if damage == "raises":
            raise MemoryError("no room")
        part = message.content[PART]
        if damage == "other batches":  # as a worker without the server's GPU has them
            part["total"], part["batches"] = part["total"] + 1, [0]
        reply = client_app(message, context)
        if damage == "missing":
            del reply.content[PART]["loss"]
        elif damage == "unequal columns":
            reply.content[PART]["loss"] = [1.0] * 3
        elif "sum" in damage:
            for name in COLUMNS:
                reply.content[PART][name] = [1.0] * node
        return reply

    shared = run(tmp_path / "shared", 2, call, SharingGrid, **SETTINGS)
    assert len(damaged) == SMALL["num-server-rounds"] + 1
    assert metrics(shared) == metrics(run(tmp_path / "alone", 2, **SETTINGS))


def test_sums_of_batches_make_the_scores():
    config = read_config({**SMALL, "eval-train-examples": 1200})
    data = read_node_data(config, None).dataset
    score, theta = make_score(config, data), initial_parameters(config, data.task)
    assert score.num_batches == 3
    parts = [score.batch_sums(theta, [0, 2]), score.batch_sums(theta, [1])]
    assert score.from_sums(torch.cat([parts[0][:1], parts[1], parts[0][1:]])) == score(theta)
