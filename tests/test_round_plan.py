"""A node trains by the round's plan in the message, and by nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flwr.app import Context, Message

import fedapp
from fedapp.client_app import app as client_app
from fedapp.errors import RunError
from fedapp.federation.arrays import to_arrays
from fedapp.federation.messages import decode_train_request, encode_train_request
from fedapp.training.client import TrainRequest
from fedapp.training.round_plan import RoundPlan
from tests.conftest import largest_difference
from tests.in_process import metrics, model, run

SETTINGS = {"precision": "float64", "local-epochs-decay": 0.5, "local-epochs": 2, "momentum": 0.5}
OTHERS = {
    "learning-rate": 9.0,
    "learning-rate-decay": 0.1,
    "local-epochs": 7,
    "local-epochs-decay": 0.9,
    "batch-size": 3,
    "batch-size-growth": 2.0,
    "batch-sampling": "uniform",
    "momentum": 0.9,
    "nesterov": True,
    "weight-decay": 0.1,
    "clip-norm": 0.001,
    "weighting": "uniform",
    "update": "model",
    "threads": 1,
}
"""Training settings, each other than the run's."""


@pytest.mark.parametrize("trainer", ["sequential", "batched"])
def test_a_node_with_other_training_settings_trains_by_the_plan(
    tmp_path: Path, trainer: str
) -> None:
    def told_otherwise(message: Message, context: Context) -> Message:
        assert all(context.run_config.get(key) != value for key, value in OTHERS.items())
        others = {**context.run_config, **OTHERS}
        node = context.run_id, context.node_id, context.node_config, context.state
        return client_app(message, Context(*node, others))

    program = {"program": "record"} if trainer == "batched" else {}
    settings = {**SETTINGS, "trainer": trainer, "threads": 2, **program}
    given = {key.replace("-", "_"): value for key, value in settings.items()}
    right = run(tmp_path / "right", **given)
    other = run(tmp_path / "other", call=told_otherwise, **given)
    assert largest_difference(model(right), model(other)) == 0.0
    assert metrics(right) == metrics(other)


def test_a_plan_of_another_version_is_refused() -> None:
    content = encode_train_request(TrainRequest(RoundPlan(), (0,)), to_arrays({}))
    plan = content.config_records["plan"]
    del plan["clip-norm"]
    plan["proximal-weight"] = 0.1
    wrong = f"this node's {fedapp.__version__} differ in clip_norm, proximal_weight"
    with pytest.raises(RunError, match=re.escape(wrong)):
        decode_train_request(content)
