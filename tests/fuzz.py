"""Hostile input: ``python -m tests.fuzz --inputs 100000 --seed 0``.

Random bytes and mutated records go where a stranger's, or a broken disk's, would: replies, answers
and scores of nodes, Flower's own encoding of messages, checkpoints, settings. Each input is either
refused with the error that is meant for it, or accepted and then holds all that a good one holds.
Anything else, and any attempt to unpickle, ends the program with the input's number.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import logging
import math
import pickle
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

import fedapp
from fedapp.config.read import defaults, read_config
from fedapp.data.dataset import Task
from fedapp.data.node_data import describe_task
from fedapp.errors import CheckpointError, ConfigError, FedappError
from fedapp.federation.callback import ServerState
from fedapp.federation.delivery import Delivery
from fedapp.federation.evaluation import aggregate_scores
from fedapp.federation.faults import KINDS, Fault, ReplyError
from fedapp.federation.messages import decode_reply, decode_scores, encode_reply, encode_scores
from fedapp.federation.nodes import Nodes
from fedapp.federation.validation import Expected
from fedapp.runs.checkpoint import check_fits, load_checkpoint, save_checkpoint
from fedapp.runs.directory import read_stored
from fedapp.seeds import generator
from fedapp.training.algorithm import algorithm_of
from fedapp.training.client import ClientMetrics, TrainReply, TrainRequest
from fedapp.training.evaluation import Score
from fedapp.training.round_plan import RoundPlan

LARGE = torch.ones(40, 10)
THETA = {"weight": torch.linspace(-1, 1, 12).reshape(3, 4), "bias": torch.zeros(3)}
FEDAVGM = algorithm_of(read_config({"algorithm": "fedavgm"}))
ORDER = TrainRequest(RoundPlan(round=7, learning_rate=0.1), (1, 4))
EXPECTED = Expected(THETA, {1: 10, 4: 20}, max_norm=100.0)
STRANGE = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    0,
    2**63 - 1,
    1e308,
    -0.0,
    "",
    "1",
    "\ud800",
    b"\x80\x04.",
    True,
    [],
    [math.nan],
    [2**62] * 3,
    ["x"],
    [-1, 4],
]


def mutated_bytes(rng, data):
    """Return bytes that are near `data`, or have nothing to do with it."""
    how = rng.integers(6)
    if how == 0:
        return rng.bytes(int(rng.integers(0, 300)))
    if how == 1:
        return data[: int(rng.integers(len(data) + 1))]
    if how == 2:
        return data + rng.bytes(int(rng.integers(1, 40)))
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
    return bytes(changed)


def choose(rng, values):
    """Return one of the values, as it is."""
    values = list(values)
    return values[int(rng.integers(len(values)))]


# ---------------------------------------------------------------------- replies


def good_reply():
    """Return the content of a reply that fits ORDER."""
    reports = (ClientMetrics(1, 10, 10.0, 2, 0.5, 0.1), ClientMetrics(4, 20, 20.0, 4, 0.4, 0.1))
    mean = {name: torch.full_like(tensor, 0.01) for name, tensor in THETA.items()}
    return encode_reply(ORDER, TrainReply(mean, {}, {}, reports))


def mutate_records(rng, content):
    """Change some values of some records to strange ones, drop, rename or swap them."""
    for _ in range(int(rng.integers(1, 4))):
        if not len(content):
            return
        name = choose(rng, content)
        how = rng.integers(8)
        if how == 0:
            del content[name]
        elif how == 1:
            content[choose(rng, ["metrics", "arrays", "clients", "other"])] = content.pop(name)
        elif isinstance(content[name], ArrayRecord):
            mutate_arrays(rng, content[name])
        else:
            mutate_values(rng, content[name])


def mutate_values(rng, record):
    """Put a strange value where there was one, if the record takes it at all."""
    key = choose(rng, [*record, "other"])
    value = choose(rng, STRANGE)
    if rng.integers(3) == 0 and isinstance(record.get(key), list) and record[key]:
        value = [*record[key]]
        value[int(rng.integers(len(value)))] = choose(rng, STRANGE)
    with contextlib.suppress(TypeError, ValueError, UnicodeEncodeError):
        record[key] = value


def mutate_arrays(rng, record):
    """Damage an array's bytes, its values, its shape, or what it says of itself."""
    if not len(record):
        return
    name = choose(rng, record)
    old = record[name]
    how = rng.integers(5)
    if how <= 1:
        record[name] = Array(old.dtype, old.shape, old.stype, mutated_bytes(rng, old.data))
    elif how == 2:
        shape = tuple(int(n) for n in rng.integers(0, 5, int(rng.integers(0, 3))))
        kind = choose(rng, ["f4", "f8", "i8", "c8", "?", ">f4", "U3", "V4", "M8[s]"])
        record[name] = Array(np.zeros(shape, dtype=kind))
    elif how == 3:
        scale = choose(rng, [math.nan, math.inf, 1e30, 1e5, 10.0])
        record[name] = Array(np.full((3, 4), scale, np.float32))
    else:
        record[name] = Array("float32", (3,), choose(rng, ["pickle", "", "torch"]), old.data)


def judge_reply(message):
    """Decode a reply; what is accepted must be good."""
    fault = None
    try:
        reply = decode_reply(ORDER, message, EXPECTED)
    except ReplyError as error:
        fault = error.fault
    if fault is not None:
        assert fault.kind in KINDS
        assert len(fault.reason) < 2000
        return "refused"
    clients = [report.client for report in reply.client_metrics]
    assert set(clients) | set(reply.failures) == set(ORDER.clients)
    assert len(clients) == len(set(clients))
    for report in reply.client_metrics:
        assert 0 <= report.weight <= EXPECTED.sizes[report.client]
        assert 0 <= report.examples <= EXPECTED.sizes[report.client]
    for name, tensor in reply.mean.items():
        assert tensor.shape == THETA[name].shape
        assert tensor.dtype == THETA[name].dtype
        assert bool(torch.isfinite(tensor).all())
        assert float(tensor.norm()) <= 100 * max(float(THETA["weight"].norm()), 1)
    assert (reply.weight > 0) == bool(reply.mean)
    return "accepted"


def as_message(content):
    """Return the content as a reply to a TRAIN message."""
    return Message(content, reply_to=Message(RecordDict(), 5, "train"))


def reply_records(rng):
    content = good_reply()
    mutate_records(rng, content)
    return judge_reply(as_message(content))


def wire():
    """Return a good reply as Flower stores it: its id, and the bytes of each part."""
    message = as_message(good_reply())
    message.metadata.__dict__["_message_id"] = message.object_id
    parts = get_all_nested_objects(message)
    return message.object_id, {key: part.deflate() for key, part in parts.items()}


class WireGrid:
    """Builds the reply from bytes as Flower does, when it is fetched."""

    def __init__(self, key, parts):
        self.key, self.parts = key, parts

    def push_messages(self, messages):
        messages[0].metadata.__dict__["_message_id"] = "m1"
        return ["m1"]

    def pull_messages(self, keys):
        reply = inflate_object_from_contents(self.key, dict(self.parts))
        reply.metadata.__dict__["_reply_to_message_id"] = "m1"
        return [reply]


def reply_bytes(rng):
    key, parts = wire()
    damaged = choose(rng, parts)
    parts[damaged] = mutated_bytes(rng, parts[damaged])
    delivery = Delivery()
    delivery._one_by_one = True
    order = [Message(RecordDict(), 5, "train")]
    ((_, reply),) = delivery.exchange(WireGrid(key, parts), order, 60.0)
    return "refused" if isinstance(reply, Fault) else judge_reply(reply)


# ---------------------------------------------------------------------- answers and scores


TASK = Task("image", (1, 8, 8), 10, tuple(map(str, range(10))))
HOLDINGS = {
    "version": fedapp.__version__,
    "client-id": 3,
    "examples": 100,
    "fingerprint": "digits-2",
    **describe_task(TASK),
}
OWN = read_config({"num-clients": 0})


def answers(rng):
    """An answer to the query: a node is taken in with a sane size, or refused with a reason."""
    content = RecordDict({"node-data": ConfigRecord(copy.deepcopy(HOLDINGS))})
    mutate_records(rng, content)
    nodes = Nodes(OWN, TASK, "digits-2", None)
    why = nodes._accept(5, as_message(content))
    assert bool(why) == (len(nodes.clients) == 0)
    assert not why or len(why) < 5000
    for client in nodes.clients:
        assert client >= 0
        assert nodes.sizes([client])[client] > 0
    return "refused" if why else "accepted"


def scores(rng):
    own = [{"ece": 0.1}, {"ece": 0.2}]
    content = encode_scores({1: Score(0.5, 0.9, 10, own[0]), 4: Score(0.4, 0.8, 20, own[1])}, {})
    mutate_records(rng, content)
    fault, found = None, {}
    try:
        found = decode_scores(as_message(content), [1, 4], has_accuracy=True)
    except ReplyError as error:
        fault = error.fault
    if fault is not None:
        assert fault.kind in KINDS
        assert len(fault.reason) < 2000
        return "refused"
    assert list(found) == [1, 4]
    good = [score for score in found.values() if isinstance(score, Score)]
    mean = aggregate_scores(good)
    sound = {} if mean is None else {key: mean[key] for key in ("loss", "accuracy", "clients")}
    assert all(math.isfinite(value) for value in sound.values())
    assert mean is None or 0 <= mean["accuracy"] <= 1
    return "accepted" if len(good) == 2 else "refused"


# ---------------------------------------------------------------------- files and settings


def checkpoints(rng):
    """One damaged checkpoint alone: refused, unless it is the same, or its digest was forged too."""
    with tempfile.TemporaryDirectory() as name:
        theta = {"weight": LARGE, "bias": THETA["bias"]}
        state = ServerState(3, theta, FEDAVGM.start(theta))
        path = save_checkpoint(Path(name), state)
        description = path.with_suffix(".json")
        target = choose(rng, [path, description])
        target.write_bytes(mutated_bytes(rng, target.read_bytes()))
        forged = target == path and rng.integers(2) == 0
        if forged:
            said = json.loads(description.read_text())
            said["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            description.write_text(json.dumps(said))
        try:
            state = load_checkpoint(Path(name))
            check_fits(state, theta, FEDAVGM, Path(name))
        except CheckpointError:
            return "refused"
    assert state.theta["weight"].shape == LARGE.shape
    assert forged or torch.equal(state.theta["weight"], LARGE)
    for tensors in (state.theta, state.algorithm):
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    assert state.algorithm.keys() >= FEDAVGM.start(theta).keys()
    assert state.round == 3
    return "accepted"


DEFAULTS = defaults()


def settings(rng):
    """Settings of which some are strange: a configuration that is whole, or one clear error."""
    values = dict(DEFAULTS)
    for _ in range(int(rng.integers(1, 4))):
        values[choose(rng, [*values, "other", "a.b", ""])] = choose(
            rng, [*STRANGE, 1, 0.5, "fedprox", "shards", "cuda:99", None, {}, ["x"]]
        )
    try:
        config = read_config(values)
    except ConfigError:
        return "refused"
    assert read_config(config.to_run_config()) == config
    assert 0 <= config.fraction_train <= 1
    return "accepted"


def stored_settings(rng):
    """A damaged config.json: read, or refused by its name."""
    values = dict(DEFAULTS)
    if strange := rng.integers(2):  # whole JSON
        in_json = [value for value in STRANGE if not isinstance(value, bytes)]
        values[choose(rng, values)] = choose(rng, [*in_json, 1, 0.5, "fedprox", "shards"])
    whole = json.dumps({"config": values, "found": {"nodes": 1}}).encode()
    with tempfile.TemporaryDirectory() as name:
        content = whole if strange else mutated_bytes(rng, whole)
        (Path(name) / "config.json").write_bytes(content)
        try:
            read_stored(Path(name))
        except FedappError:
            return "refused"
    return "accepted"


TARGETS = {
    reply_records: 0.45,
    reply_bytes: 0.2,
    answers: 0.1,
    scores: 0.05,
    checkpoints: 0.1,
    settings: 0.05,
    stored_settings: 0.05,
}
"""What is tried, and its share of the inputs."""


@contextlib.contextmanager
def no_pickle():
    """Make every attempt to unpickle an error that no target expects."""

    def refuse(*arguments, **named):
        raise AssertionError("something was unpickled")

    saved = pickle.load, pickle.loads, pickle.Unpickler
    pickle.load = pickle.loads = pickle.Unpickler = refuse
    try:
        yield
    finally:
        pickle.load, pickle.loads, pickle.Unpickler = saved


@contextlib.contextmanager
def no_log():
    """Log nothing."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def fuzz(inputs, seed=0):
    """Try this many inputs, shared among the targets; return what came of them."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SUPERLINK_NODE_ID, 1
    found = {}
    with no_log(), no_pickle():
        for target, share in TARGETS.items():
            found[target.__name__] = outcomes = Counter()
            for number in range(round(inputs * share)):
                try:
                    outcomes[target(generator(seed, target.__name__, number))] += 1
                except Exception as error:
                    error.add_note(f"{target.__name__}, seed {seed}, input {number}")
                    raise
    return found


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    began = time.perf_counter()
    found = fuzz(given.inputs, given.seed)
    for name, outcomes in found.items():
        print(f"{name:16} refused {outcomes['refused']:6}  accepted {outcomes['accepted']:6}")
    total = sum(sum(outcomes.values()) for outcomes in found.values())
    print(f"{total} inputs in {time.perf_counter() - began:.0f} s; none did harm")


if __name__ == "__main__":
    main(sys.argv[1:])
