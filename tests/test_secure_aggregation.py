"""Why there is no secure aggregation: Flower 1.42 offers SecAgg+ to its legacy strategies alone.

When one of these fails, Flower has changed, and docs/privacy.md can be taken up again.
"""

import inspect

import flwr.clientapp.mod
import flwr.serverapp.strategy
import pytest
from flwr.app import Context, Message, MessageType, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.server.workflow import SecAggPlusWorkflow

from fedapp.federation.arrays import to_arrays
from fedapp.federation.messages import encode_train_request
from fedapp.training.client import TrainRequest
from fedapp.training.round_plan import RoundPlan
from tests.test_delivery import SlowGrid

pytestmark = pytest.mark.usefixtures("server_identity")


def context():
    return Context(1, 1, {}, RecordDict(), {})


def test_the_workflow_takes_no_context_of_a_server_app():
    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    with pytest.raises(TypeError, match="Expect a LegacyContext"):
        workflow(SlowGrid(None, {}), context())


def test_the_clients_half_finds_nothing_it_knows_in_a_message_of_this_app():
    content = encode_train_request(TrainRequest(RoundPlan(), (0,)), to_arrays({}))
    message = Message(content, 1, MessageType.TRAIN)
    with pytest.raises(KeyError):
        secaggplus_mod(message, context(), lambda message, context: None)


def test_there_is_no_other_for_strategies_of_the_message_api():
    names = {
        name.lower()
        for module in (flwr.clientapp.mod, flwr.serverapp.strategy)
        for name, _ in inspect.getmembers(module)
    }
    assert not [name for name in names if "secagg" in name or "secure" in name]
