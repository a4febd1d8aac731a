"""Two hundred rounds in which clients fail at random and send rubbish, beside the run without them."""

import gc
from pathlib import Path

import pytest
from flwr.app import MessageType

from fedapp.federation.samplers.uniform import Uniform
from fedapp.runs.callbacks import Metrics
from fedapp.seeds import generator
from tests.conftest import largest_difference
from tests.damages import DAMAGES
from tests.in_process import client_app, metrics, model, run

ROUNDS, NODES = 200, 6
FAILING, RUBBISH = 0.3, 0.1
SETTINGS = {
    "num_server_rounds": ROUNDS,
    "num_clients": 20,
    "fraction_train": 0.3,
    "eval_every": 20,
    "batch_size": 32,
    "checkpoint_every": 50,
}


def fault_of(round_, client):
    """Return how a client fails in a round, or None: a function of both alone."""
    rng = generator(0, "soak", round_, client)
    drawn = rng.random()
    if drawn < FAILING:
        return "raises"
    return rng.choice([*DAMAGES][1:]) if drawn < FAILING + RUBBISH else None


def failing(message, context):
    """Train, and fail as the clients of this message do; there is one a node."""
    reply = client_app(message, context)
    if message.metadata.message_type != MessageType.TRAIN:
        return reply
    records = message.content.config_records
    (client,) = records["config"]["clients"]
    fault = fault_of(records["plan"]["round"], client)
    return reply if fault is None else DAMAGES[fault][0](message, reply) or reply


def resident_bytes():
    """Return the memory of this process, or 0 where the system does not say."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * 4096 if path.exists() else 0


def soak(folder, patch):
    """Return the folder of the run with faults, of that without, and the memory every ten rounds."""
    memory = []
    write, draw = Metrics.on_round, Uniform.sample

    def weigh(self, result, state):
        if state.round % 10 == 0:
            gc.collect()
            memory.append(resident_bytes())
        return write(self, result, state)

    def sound(sampler, candidates):
        drawn = draw(sampler, candidates)
        return [client for client in drawn if fault_of(candidates.round, client) is None]

    patch.setattr(Metrics, "on_round", weigh)
    faulty = run(folder / "faulty", NODES, failing, **SETTINGS)
    patch.setattr(Metrics, "on_round", write)
    patch.setattr(Uniform, "sample", sound)
    clean = run(folder / "clean", NODES, **SETTINGS)
    return faulty, clean, memory


def check_accuracy(faulty, clean):
    """More than within 2 points: the same clients count, so the parameters are the same."""
    last, undisturbed = metrics(faulty)[-1], metrics(clean)[-1]
    assert last["round"] == ROUNDS
    assert last["test_accuracy"] > 0.9
    assert abs(last["test_accuracy"] - undisturbed["test_accuracy"]) <= 0.02
    assert largest_difference(model(faulty), model(clean)) <= 1e-5


def check_faults(faulty, clean):
    """Every fault is named, and counted by its kind."""
    kinds = {name: kind for name, (_, kind, _) in DAMAGES.items()}
    for record, sound in zip(metrics(faulty)[1:], metrics(clean)[1:], strict=True):
        expected = {k: fault_of(record["round"], k) for k in record["clients"]}
        lost = {str(client) for client, fault in expected.items() if fault}
        assert set(record.get("failures", {})) == lost
        assert record["replied"] == sound["replied"] == len(expected) - len(lost)
        named = sorted(kinds[fault] for fault in expected.values() if fault)
        counted = record.get("faults", {})
        assert sorted(kind for kind in counted for _ in range(counted[kind])) == named


@pytest.mark.nightly
def test_two_hundred_rounds_in_which_clients_fail(tmp_path, monkeypatch, subtests):
    faulty, clean, memory = soak(tmp_path, monkeypatch)
    with subtests.test("the accuracy is that of the run in which they were not sampled"):
        check_accuracy(faulty, clean)
    with subtests.test("every fault is named and counted"):
        check_faults(faulty, clean)
    # From round 50 on it grows by less than the noise of the memory allocator.
    with subtests.test("memory is flat"):
        assert len(memory) == ROUNDS // 10 + 1
        assert max(memory[5:]) - memory[5] < 8 * 2**20
