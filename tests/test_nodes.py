"""What nodes answer when they are asked what they hold, and who is refused for it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo

import fedapp
from fedapp import node as node_module
from fedapp.client_app import app as client_app
from fedapp.config import read as read_module
from fedapp.config.read import read_config
from fedapp.config.run_config import RunConfig
from fedapp.config.settings import Scalar
from fedapp.data.dataset import Task
from fedapp.data.embedded.digits import Digits
from fedapp.data.node_data import NodeData, OwnClient, describe_task, read_node_data
from fedapp.engines.grid import RUN_ID, run_client_app
from fedapp.engines.in_process import InlineGrid, run_inline
from fedapp.errors import ConfigError, RunError
from fedapp.federation.arrays import to_arrays
from fedapp.federation.delivery import Delivery
from fedapp.federation.messages import (
    EvaluateRequest,
    encode_evaluate_request,
    encode_train_request,
)
from fedapp.federation.nodes import NEW_NODE_WAIT, REJECTED_PAUSE, Nodes
from fedapp.federation.queries import Queries
from fedapp.server_app import app as server_app
from fedapp.training.build import initial_parameters
from fedapp.training.client import TrainRequest
from fedapp.training.round_plan import RoundPlan
from tests.data_files import image_features, image_splits, write_image_folder, write_parquet
from tests.in_process import SMALL, metrics

pytestmark = pytest.mark.usefixtures("server_identity")

DIGITS = Digits().load()


def spoken(folder: Path, *lines: str) -> Path:
    """Write a folder of text for training and testing."""
    table = {"author": ["x"] * len(lines), "text": list(lines)}
    return write_parquet(folder, {"train": table, "test": table})


def asked_with(server: Path, *folders: Path, **settings: Scalar) -> list[str]:
    """Return of nodes with these folders why each is refused, or nothing."""
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    config = read_config({"dataset": str(server), "num-clients": 0, **given})
    task = read_node_data(config, None).dataset.task
    nodes = [OwnClient(client, str(folder)) for client, folder in enumerate(folders)]
    model = "word-lstm" if task.kind == "tokens" else "2nn"
    return [asked(read_node_data(config, node).describe(), task, model=model) for node in nodes]


def test_a_node_gives_no_hash_of_its_own_data(tmp_path: Path) -> None:
    """With it the server could test any guess of them, also of private runs."""
    folder = spoken(tmp_path / "own", "a" * 200)
    config = read_config({"dataset": str(folder), "num-clients": 0})
    own = read_node_data(config, OwnClient(0, str(folder)))
    shared = read_node_data(config, OwnClient(0, num_partitions=2))
    assert own.describe()["fingerprint"] == ""
    assert shared.describe()["fingerprint"] == shared.dataset.fingerprint != ""


def asked(
    answer: dict[str, object],
    task: Task = DIGITS.task,
    sizes: np.ndarray | None = None,
    model: str = "2nn",
) -> str:
    """Return why a node that answers so is refused, or nothing; with sizes clients are virtual."""
    record = RecordDict({"node-data": ConfigRecord(answer)})  # type: ignore[arg-type]
    config = read_config({"num-clients": 0 if sizes is None else len(sizes), "model": model})
    nodes = Nodes(config, task, DIGITS.fingerprint, sizes)
    why = nodes._accept(5, Message(record, SUPERLINK_NODE_ID, "query"))
    assert sizes is not None or bool(nodes.clients) == (not why)
    return why


def answer(task: Task = DIGITS.task) -> dict[str, object]:
    """Return what a node with data of this task answers."""
    data = dataclasses.replace(DIGITS, task=task)
    return NodeData(data, None, OwnClient(3)).describe()


def test_as_many_other_words_are_another_vocabulary(tmp_path: Path) -> None:
    """Both have 7 symbols, so the same network; but symbol 1 is 'a' here and 'p' there."""
    first, second = spoken(tmp_path / "1", "a b c d e f"), spoken(tmp_path / "2", "p q r s t u")
    fit, other = asked_with(first, first, second, text_unit="words")
    assert fit == ""
    assert re.search(r"vocabulary '.*' instead of '.*'; give it the", other)
    assert asked_with(first, first, second) == ["", ""]  # of characters


def test_the_task_is_compared_whole() -> None:
    words = Task("tokens", (10,), 9, (), 9, "words")
    assert asked(answer(words), words) == ""
    for key, other in (("num-symbols", 8), ("vocabulary", "others"), ("one-label", True)):
        assert "instead of" in asked(answer(words) | {key: other}, words)


def test_fewer_classes_are_another_network() -> None:
    unnamed = dataclasses.replace(DIGITS.task, labels=())
    assert asked(answer(unnamed)) == ""
    fewer = dataclasses.replace(unnamed, num_classes=7)
    assert "7 classes instead of 10; give it the server's data set" in asked(answer(fewer))


@pytest.mark.parametrize("key", describe_task(DIGITS.task))
def test_an_answer_without_a_part_of_the_task_is_refused(key: str) -> None:
    lacking = {name: value for name, value in answer().items() if name != key}
    assert asked(lacking).startswith(f"it reports no {key} for its data")
    assert asked(answer() | {key: b"1"}).startswith(f"it reports {key} = b'1' for its data")
    assert asked(answer()) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"version": "0.0.1"},
            f"version = '0.0.1', but the server has '{fedapp.__version__}'; inst",
        ),
        ({"examples": 0}, "it has no training examples; point its data-path to a folder that has"),
        ({"client-id": -1}, "no data of its own, but num-clients = 0; set its data-path and"),
        ({"examples": 1.5}, "examples = 1.5 and client-id = 3 are no numbers"),
        ({"examples": "9"}, "examples = 9 and client-id = 3 are no numbers"),
        ({"client-id": [3]}, "client-id = [3] are no numbers"),
        (
            {"examples": 2**53 + 1},
            "9007199254740993 and client-id = 3, and at most 900719925474099",
        ),
        ({"client-id": 2**63}, "client-id = 9223372036854775808, and at most 9007199254740992 and"),
    ],
    ids=str,
)
def test_a_device_whose_answer_does_not_fit_is_refused(change: dict, said: str) -> None:
    assert said in asked(answer() | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fingerprint": "other"}, "fingerprint = 'other', but the server has .*copy of the data"),
        ({"fingerprint": ""}, "fingerprint = '', but the server has"),
        ({"version": "0.0.1"}, "version = '0.0.1'"),
    ],
    ids=str,
)
def test_a_node_of_virtual_clients_needs_the_servers_data(change: dict, said: str) -> None:
    """Its clients would train on other examples under the same numbers."""
    fit, sizes = answer() | {"fingerprint": DIGITS.fingerprint}, np.full(100, 5)
    assert asked(fit, sizes=sizes) == ""
    assert re.search(said, asked(fit | change, sizes=sizes))


OWN: dict[str, Scalar] = {"num-clients": 0, "2nn.hidden": 4, "trainer": "sequential"}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("where", ["data-path", "partition"])
def test_a_node_gives_its_examples_for_no_other_client(
    where: str, split: str, tmp_path: Path
) -> None:
    """Neither those of a folder of its own nor those of a part of the run's data."""
    node, dataset = OwnClient(1, num_partitions=3), "digits"
    if where == "data-path":
        dataset = str(write_parquet(tmp_path / "own", image_splits(), image_features()))
        node = OwnClient(1, dataset)
    examples = getattr(read_node_data(read_config({**OWN, "dataset": dataset}), node), split)
    assert len(examples(1)) > 0
    for other in (0, 2):
        said = f"is client 1 and trains no other client, but it was sent client {other}"
        with pytest.raises(ConfigError, match=said):
            examples(other)


def test_a_server_that_asks_a_device_for_another_client_gets_no_update_and_no_score() -> None:
    """Nor does it get the device's own under that client's name."""
    config = read_config(OWN)
    theta = to_arrays(initial_parameters(config, DIGITS.task))
    device = Context(RUN_ID, 7, {"partition-id": 1, "num-partitions": 3}, RecordDict(), OWN)

    def sent(content: RecordDict, kind: str) -> Message:
        return run_client_app(client_app, Message(content, 7, kind), device)

    plan = RoundPlan(epochs=1, learning_rate=0.1, trainer="sequential")
    order = encode_train_request(TrainRequest(plan, (0, 1)), theta)
    content = sent(order, MessageType.TRAIN).content
    assert content["clients"]["client"] == [1]
    assert list(content["failures"]["client"]) == [0]
    assert "trains no other client" in content["failures"]["reason"][0]
    first, second = (
        sent(encode_evaluate_request(EvaluateRequest(0, c, 1), theta), MessageType.EVALUATE)
        for c in ((1, 0), (0, 1))
    )
    assert first.content["clients"]["client"] == [1]
    assert second.has_error()


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_a_device_whose_labels_have_changed_since_it_was_accepted_says_so(
    kind: str, tmp_path: Path
) -> None:
    """With as many labels of other names it would train on wrong ones."""
    folder = write_image_folder(tmp_path / "own", ("cat", "dog"))
    settings = {**OWN, "dataset": str(write_image_folder(tmp_path / "run", ("cat", "dog")))}
    config = read_config(settings)
    data = read_node_data(config, None).dataset
    nodes = Nodes(config, data.task, data.fingerprint, None)
    theta = to_arrays(initial_parameters(config, data.task))
    plan = RoundPlan(epochs=1, learning_rate=0.1, trainer="sequential")
    device = Context(RUN_ID, 7, {"data-path": str(folder), "client-id": 0}, RecordDict(), settings)

    def reply() -> Message:
        train = encode_train_request(TrainRequest(plan, (0,)), theta)
        score = encode_evaluate_request(EvaluateRequest(0, (0,), 1), theta)
        content = nodes.add_to(train if kind == MessageType.TRAIN else score)
        return run_client_app(client_app, Message(content, 7, kind), device)

    assert reply().content["clients"]["client"] == [0]
    for split in folder.iterdir():
        (split / "cat").rename(split / "elk")
    node_module._CACHE.data.cache_clear()  # each message of a SuperNode has a process of its own
    assert "labels (dog, elk) instead of (cat, dog)" in reply().error.reason


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often the ClientApp reads data and makes a trainer, from an empty memory."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., object]:
        function = getattr(node_module, name)

        def call(*given: object) -> object:
            counts[name] += 1
            return function(*given)

        return call

    for name in ("read_node_data", "make_trainer"):
        monkeypatch.setattr(node_module, name, counted(name))
    monkeypatch.setattr(node_module, "_CACHE", node_module._Cache())
    return counts


@pytest.mark.parametrize("num_clients", [16, 0])
def test_eight_nodes_in_one_process_share_data_and_trainer(
    num_clients: int, built: Counter[str], tmp_path: Path
) -> None:
    """Flower gives each node a partition-id of its own, which virtual clients do not look at."""
    values = {**SMALL, "num-clients": num_clients, "run-dir": str(tmp_path / "run")}
    run_inline(server_app, client_app, values, num_nodes=8)
    assert built == {"read_node_data": 1, "make_trainer": 1}
    record = metrics(tmp_path / "run")[-1]
    assert record["replied"] == len(record["clients"]) == (8 if num_clients else 4)


def test_a_process_reads_a_run_config_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each message brings it, to the server's thread and to others."""
    reads: list[dict[str, Scalar]] = []
    read = read_module._read

    def counted(values: dict[str, Scalar]) -> RunConfig:
        reads.append(values)
        return read(values)

    monkeypatch.setattr(read_module, "_read", counted)
    read_module.config_of.cache_clear()
    values = {**SMALL, "run-dir": str(tmp_path / "run")}
    run_inline(server_app, client_app, values, num_nodes=2)
    contexts = [Context(RUN_ID, 1, {}, RecordDict(), dict(reversed(values.items())))] * 2
    with ThreadPoolExecutor() as threads:
        list(threads.map(node_module.node_setup_of, contexts))
    assert reads == [values]


def test_settings_of_another_type_are_other_settings(built: Counter[str]) -> None:
    """1 and True are equal, and so have one hash: the second must not be taken for the first."""
    contexts = [Context(RUN_ID, 1, {}, RecordDict(), {"num-clients": n}) for n in (1, True)]
    assert node_module.node_setup_of(contexts[0]).own is None
    with pytest.raises(ConfigError, match="num-clients = true"):
        node_module.node_setup_of(contexts[1])


class HoldingGrid(InlineGrid):
    """Node 2 takes its time to answer a query: until ``held`` is false."""

    held = True
    asked = 0

    def push(self, message_id: str, message: Message) -> None:
        """Take a message in, and count those to node 2."""
        self.asked += message.metadata.dst_node_id == 2
        super().push(message_id, message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Answer all but what node 2 is asked."""
        ids = [key for key in message_ids if key in self._pending]
        wait = {key for key in ids if self._pending[key].metadata.dst_node_id == 2 and self.held}
        return super().pull_messages([key for key in ids if key not in wait])


def holding(**settings: Scalar) -> tuple[Nodes, HoldingGrid]:
    """Return nodes that nobody has asked yet, and the grid of two."""
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    config = read_config({"num-clients": 0, **given})
    values = config.model_dump(by_alias=True)
    return Nodes(config, DIGITS.task, DIGITS.fingerprint, None), HoldingGrid(
        client_app, values, [{"partition-id": i, "num-partitions": 2} for i in range(2)]
    )


def test_a_silent_node_holds_up_the_start_no_longer_than_node_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    nodes, (_, grid) = timed(clock, monkeypatch, node_timeout=60.0), holding()
    assert nodes.wait(grid, 1) == [1]
    assert 60.0 < clock.now < 62.0
    grid.held = False
    assert nodes.available(grid) == [1, 2]


def test_a_silent_node_is_named_where_nodes_are_missing() -> None:
    nodes, grid = holding(node_timeout=0.2, min_nodes=2)
    with pytest.raises(
        RunError, match=r"only 1 accepted .*not accepted:\n  node 2: it has not answered yet"
    ):
        nodes.wait(grid, 2)


def test_an_answer_that_took_too_long_is_silence_and_no_reason_to_refuse() -> None:
    """Flower says so of a message that died on its way: the node is asked again as soon as needed."""
    nodes, grid = registered()
    nodes.config = read_config({"num-clients": 0, "min-nodes": 2})
    nodes.wait(grid, 2)
    late = Message(
        Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "it died"),
        reply_to=Message(RecordDict(), 2, "query"),
    )
    nodes.query_again(1)
    nodes._handle_answer(2, late)
    assert nodes.rejected == {}
    assert nodes.wait(grid, 2) == [1, 2]


def test_a_newcomer_that_answers_late_counts_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round waits for its answer for a while, and then goes on without; it is asked but once."""
    clock = Clock()
    nodes, (_, grid) = timed(clock, monkeypatch), holding()
    assert [nodes.available(grid) for _ in range(3)] == [[1]] * 3
    assert nodes.clients == [0]
    assert clock.now == pytest.approx(NEW_NODE_WAIT)
    grid.held = False
    assert nodes.available(grid) == [1, 2]
    assert nodes.clients == [0, 1]
    assert grid.asked == 1


@pytest.mark.parametrize("database", [":flwr-in-memory:", "superlink.db"])
def test_flower_says_that_a_node_is_another_process_under_the_same_id(
    database: str, tmp_path: Path
) -> None:
    """What a ServerApp hears of a SuperNode with a key that is stopped and started."""
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.constant import NOOP_FEDERATION_ID
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager
    from flwr.superlink.grid import InMemoryGrid

    where = database if database.startswith(":") else str(tmp_path / database)
    factory = LinkStateFactory(where, NoOpFederationManager(), ObjectStoreFactory(where))
    grid, state = InMemoryGrid(factory), factory.state()
    run = state.create_run(
        "", "", "hash", {}, NOOP_FEDERATION_ID, None, "", primary_task_type="flwr-serverapp"
    )
    grid._run = SimpleNamespace(run_id=run)  # type: ignore[assignment]
    node = state.create_node("owner", "owner", b"key", 30.0, name="device-0")
    assert not list(grid.get_nodes())
    state.activate_node(node, 30.0)
    (first,) = grid.get_nodes()
    state.acknowledge_node_heartbeat(node, 30.0)
    assert [n.last_activated_at for n in grid.get_nodes()] == [first.last_activated_at]
    state.deactivate_node(node)
    state.activate_node(node, 30.0)
    (second,) = grid.get_nodes()
    assert list(grid.get_node_ids()) == [first.node_id] == [second.node_id] == [node]
    assert first.name == second.name == "device-0"
    assert "" != first.last_activated_at < second.last_activated_at


class RegisteredGrid(InlineGrid):
    """Says of each node what Flower says of one with a key; what it holds is ``answers``."""

    def __init__(self, answers: dict[int, dict[str, object]]) -> None:
        super().__init__(client_app, {}, [{}] * len(answers))
        self.answers, self.starts = answers, dict.fromkeys(answers, 1)
        self.asked: list[int] = []
        self.replies: dict[str, Message] = {}

    def restart(self, node: int, **holds: object) -> None:
        """Start a SuperNode again, which holds something else now."""
        self.starts[node] += 1
        self.answers[node] = self.answers[node] | {k.replace("_", "-"): v for k, v in holds.items()}

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Name the nodes, and say when each was started."""
        for node, start in self.starts.items():
            yield NodeInfo(node_id=node, name=f"device-{node}", last_activated_at=str(start))

    def push(self, message_id: str, message: Message) -> None:
        """Answer at once."""
        node = message.metadata.dst_node_id
        self.asked.append(node)
        record = ConfigRecord(self.answers[node])  # type: ignore[arg-type]
        self.replies[message_id] = Message(RecordDict({"node-data": record}), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the answers."""
        return [self.replies.pop(key) for key in message_ids if key in self.replies]


def registered(
    queries: Queries | None = None, config: dict[str, Scalar] | None = None, **examples: int
) -> tuple[Nodes, RegisteredGrid]:
    """Return nodes that are clients 0 and 1, and their grid; node 2 has as many examples as told."""
    second = answer() | {"client-id": 1} | examples
    read = read_config({"num-clients": 0, **(config or {})})
    nodes = Nodes(read, DIGITS.task, DIGITS.fingerprint, None, queries=queries)
    return nodes, RegisteredGrid({1: answer() | {"client-id": 0}, 2: second})


class Clock:
    """Seconds that pass while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class SlowDeviceGrid(RegisteredGrid):
    """Node 2 takes ``seconds`` for a query, one after the other; like Flower, drops an expired reply."""

    def __init__(self, answers: dict[int, dict[str, object]], clock: Clock, seconds: float) -> None:
        super().__init__(answers)
        self.clock, self.seconds, self.ready = clock, seconds, dict[str, float]()
        self.idle = 0.0

    def push(self, message_id: str, message: Message) -> None:
        """Answer later than asked, if the message is still valid then."""
        super().push(message_id, message)
        if message.metadata.dst_node_id == 2:
            self.idle = max(self.idle, self.clock.now) + self.seconds
            self.ready[message_id] = self.idle
            if self.idle > self.clock.now + message.metadata.ttl:
                del self.replies[message_id]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the answers that are ready."""
        return super().pull_messages(
            [key for key in message_ids if self.ready.get(key, 0.0) <= self.clock.now]
        )


def timed(clock: Clock, monkeypatch: pytest.MonkeyPatch, **settings: Scalar) -> Nodes:
    """Return nodes that live by this clock."""
    queries = Queries()
    for module in ("nodes", "delivery"):
        monkeypatch.setattr(f"fedapp.federation.{module}.time", clock)
    queries._delivery = Delivery(clock.monotonic)
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    config = read_config({"num-clients": 0, **given})
    return Nodes(config, DIGITS.task, DIGITS.fingerprint, None, queries=queries)


TWO_CLIENTS = {n: answer() | {"client-id": n - 1} for n in (1, 2)}


@pytest.mark.parametrize(("seconds", "asked"), [(200.0, [1, 2]), (700.0, [1, 2, 2, 2])])
@pytest.mark.parametrize("min_nodes", [1, 2])
def test_a_device_that_takes_minutes_to_start_takes_part(
    min_nodes: int,
    seconds: float,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its first answer counts when it comes, at the start as in a later round, and no further one."""
    clock = Clock()
    timeout = 100.0 if min_nodes == 1 else 2 * seconds
    nodes = timed(clock, monkeypatch, min_nodes=min_nodes, node_timeout=timeout)
    grid = SlowDeviceGrid(TWO_CLIENTS, clock, seconds)
    assert nodes.wait(grid, min_nodes) == ([1, 2] if min_nodes == 2 else [1])
    clock.now = max(clock.now, seconds)
    assert nodes.available(grid) == [1, 2]
    assert clock.now < seconds + 20
    clock.now += 4 * seconds
    assert nodes.available(grid) == [1, 2]
    assert grid.asked == (asked if min_nodes == 2 else [1, 2])
    assert "rejected" not in caplog.text


def test_two_answers_of_a_node_at_once_are_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    nodes = timed(clock, monkeypatch, node_timeout=250.0)
    grid = SlowDeviceGrid(TWO_CLIENTS, clock, 300.0)
    assert nodes.wait(grid, 1) == [1]
    assert grid.asked == [1, 2, 2]
    clock.now = 1000.0
    assert nodes.available(grid) == [1, 2]
    assert "rejected" not in caplog.text


class LosingGrid(RegisteredGrid):
    """The first answer of node 2 is lost on its way."""

    def push(self, message_id: str, message: Message) -> None:
        """Answer at once."""
        super().push(message_id, message)
        if message.metadata.dst_node_id == 2 and self.asked.count(2) == 1:
            del self.replies[message_id]


def test_a_node_whose_answer_was_lost_is_queried_again_after_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    nodes = timed(clock, monkeypatch, min_nodes=2, node_timeout=300.0)
    grid = LosingGrid(TWO_CLIENTS)
    assert nodes.wait(grid, 2) == [1, 2]
    assert grid.asked == [1, 2, 2]


def test_a_round_in_a_run_waits_for_one_node_where_all_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = timed(Clock(), monkeypatch, min_nodes=2, node_timeout=30.0)
    grid = RegisteredGrid(TWO_CLIENTS)
    assert nodes.wait(grid, 2) == [1, 2]
    starts, grid.starts = grid.starts, {}
    with pytest.raises(
        RunError, match=r"min-nodes = 2 \(after the first round 1\): only 0 accepted"
    ):
        nodes.available(grid)
    grid.starts = {1: starts[1]}
    assert nodes.available(grid) == [1]


class FailingGrid(RegisteredGrid):
    """Its SuperLink fails as it is given messages for the first time."""

    failed = False

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take messages from the second time on."""
        if self.failed:
            return super().push_messages(messages)
        self.failed = True
        request = httpx.Request("POST", "http://superlink/push-messages")
        response = httpx.Response(500, request=request)
        raise httpx.HTTPStatusError("500", request=request, response=response)


def test_nodes_whose_queries_were_not_taken_are_queried_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = timed(Clock(), monkeypatch)
    grid = FailingGrid(TWO_CLIENTS)
    assert nodes.connected(grid, 1.0) == []
    assert nodes.rejected == {}
    assert nodes.connected(grid, 1.0) == [1, 2]


def sent_ahead() -> tuple[Nodes, RegisteredGrid]:
    """Return nodes that were queried before there were any ``Nodes``."""
    _, grid = registered()
    queries = Queries()
    queries.send_ahead(grid)
    nodes, _ = registered(queries)
    return nodes, grid


def test_nodes_that_were_queried_ahead_are_not_queried_again() -> None:
    nodes, grid = sent_ahead()
    assert nodes.wait(grid, 2) == [1, 2]
    assert grid.asked == [1, 2]


def test_clients_that_left_are_part_of_the_total_weight() -> None:
    """SCAFFOLD's c is a mean over all clients that the run has had, also over those before a resume."""
    nodes, grid = registered(examples=7)
    size = len(DIGITS.train)
    assert nodes.connected(grid, 1.0) == [1, 2]
    assert nodes.total_weight == size + 7
    del grid.starts[2]
    assert nodes.connected(grid, 1.0) == [1]
    assert (list(nodes.clients), nodes.total_weight) == ([0], size + 7)
    nodes.add_known({5: 100, 1: 3})  # client 1 has 7 since
    assert nodes.total_weight == size + 7 + 100
    assert nodes.known == {0: size, 1: 7, 5: 100}


def test_an_answer_to_a_query_sent_ahead_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 2 answers at the third look."""
    nodes, grid = sent_ahead()
    looks, pull = itertools.count(1), grid.pull_messages

    def slow(message_ids: Iterable[str]) -> list[Message]:
        return pull(list(message_ids)[: 2 if next(looks) > 2 else 1])

    monkeypatch.setattr(grid, "pull_messages", slow)
    assert nodes.wait(grid, 2) == [1, 2]
    assert grid.asked == [1, 2]


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "silent"])
def test_a_node_that_was_restarted_after_a_query_sent_ahead_is_queried_again(
    answered: bool,
) -> None:
    """What it said before is not what it holds now."""
    nodes, grid = sent_ahead()
    if not answered:
        grid.replies.clear()
    grid.restart(2, examples=9)
    assert nodes.connected(grid, 1.0) == ([1, 2] if answered else [2])
    assert nodes.sizes([1]) == {1: 9}
    assert grid.asked == [1, 2, 2]


def test_a_query_sent_ahead_that_has_expired_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedapp.federation.queries.QUERY_TIMEOUT", 0.0)
    nodes, grid = sent_ahead()
    monkeypatch.setattr("fedapp.federation.queries.QUERY_TIMEOUT", 10.0)
    assert nodes.wait(grid, 2) == [1, 2]
    assert grid.asked == [1, 2, 1, 2]


def test_a_refused_node_that_was_restarted_between_two_looks_takes_part_again() -> None:
    nodes, grid = registered(examples=0)
    assert nodes.available(grid) == [1]
    grid.restart(2, examples=9)
    assert nodes.available(grid) == [1, 2]
    assert nodes.sizes([1]) == {1: 9}
    assert grid.asked == [1, 2, 2]


def test_a_node_that_is_away_is_named_once_and_takes_part_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes, grid = registered()
    assert nodes.available(grid) == [1, 2]
    del grid.starts[2]
    for _ in range(2):
        assert nodes.available(grid) == [1]
    assert caplog.text.count("Node 2 (device-2) is no longer connected") == 1
    assert nodes.clients == [0]
    grid.starts[2] = 2
    assert nodes.available(grid) == [1, 2]
    assert nodes.clients == [0, 1]


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_client_that_a_mean_counts_keeps_its_number_of_examples(weighting: str) -> None:
    """Before the first round it may have another; uniform weights do not depend on it."""
    nodes, grid = registered(examples=3, config={"algorithm": "scaffold", "weighting": weighting})
    for examples in (3, 5):
        grid.restart(2, examples=examples)
        assert nodes.available(grid) == [1, 2]
    nodes.state_sizes = nodes.known
    grid.restart(2, examples=9)
    assert nodes.available(grid) == ([1] if weighting == "examples" else [1, 2])
    if weighting == "examples":
        assert "examples = 9, but client 1 had 5" in nodes.rejected[2]
        assert "the data as they were" in nodes.rejected[2]
        assert nodes.known[1] == 5
        grid.restart(2, examples=5)
        assert nodes.available(grid) == [1, 2]


def test_a_fit_node_that_was_restarted_as_another_client_is_that_client() -> None:
    nodes, grid = registered()
    assert nodes.available(grid) == [1, 2]
    grid.restart(2, client_id=7, examples=9)
    assert nodes.available(grid) == [1, 2]
    assert nodes.clients == [0, 7]
    assert (nodes.sizes([7]), nodes.node_of(7)) == ({7: 9}, 2)


def test_nodes_that_cut_the_data_otherwise_are_refused_until_they_do_as_the_others() -> None:
    """Partition 1 of 3 has examples of partition 0 of 2; a folder of one's own is cut by nobody."""
    nodes, grid = registered(**{"num-partitions": 3})
    grid.answers[1] |= {"num-partitions": 2}
    assert nodes.available(grid) == [1]
    assert (
        "num-partitions = 3, but node 1 (device-1) has 2: their examples would overlap"
        in nodes.rejected[2]
    )
    for cut in (2, 0):
        grid.restart(2, **{"num-partitions": cut})
        assert nodes.available(grid) == [1, 2]


def test_parts_of_different_copies_of_the_data_are_refused() -> None:
    """Another order of the rows would put examples into two parts, and others into none."""
    nodes, grid = registered(**{"num-partitions": 2, "fingerprint": "one"})
    grid.answers[1] |= {"num-partitions": 2, "fingerprint": "another"}
    assert nodes.available(grid) == [1]
    said = "fingerprint = 'one', but node 1 (device-1) has 'another': their examples would overlap"
    assert said in nodes.rejected[2]
    grid.restart(2, fingerprint="another")
    assert nodes.available(grid) == [1, 2]
    grid.restart(2, fingerprint="one", **{"num-partitions": 0})  # a folder of its own
    assert nodes.available(grid) == [1, 2]


def test_what_a_node_answered_before_its_restart_says_nothing_of_it_now() -> None:
    """Its answer is there only when it is another process already."""
    nodes, grid = registered()
    assert nodes.connected(grid, 0.0) == []
    grid.restart(2, client_id=7)
    assert nodes.available(grid) == [1, 2]
    assert nodes.clients == [0, 7]
    assert grid.asked == [1, 2, 2]


def test_a_refused_node_that_was_mended_where_it_stands_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The round in which it is asked does not wait for it, and what is known is not said again."""
    nodes, grid = registered(examples=0)
    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(
        "fedapp.federation.nodes.time", SimpleNamespace(monotonic=lambda: clock.now)
    )
    assert nodes.available(grid) == nodes.available(grid) == [1]
    for asked in (2, 3):
        clock.now += REJECTED_PAUSE
        assert nodes.available(grid) == nodes.available(grid) == [1]
        assert grid.asked.count(2) == asked
    grid.answers[2] = grid.answers[2] | {"examples": 9}
    clock.now += REJECTED_PAUSE
    assert [nodes.available(grid) for _ in range(2)] == [[1], [1, 2]]
    assert nodes.rejected == {}
    said = [record.getMessage() for record in caplog.records]
    assert sum(text.startswith("Node 2 (device-2) is rejected: it has no") for text in said) == 1
    assert (
        sum(text.startswith("Node 2 (device-2) is accepted: client 1, 9 ex") for text in said) == 1
    )


def test_what_a_node_raised_is_quoted_without_the_words_around_it() -> None:
    """As Flower has it: with the class written out, in brackets, at the end of many lines."""
    nodes, grid = registered()
    nodes.wait(grid, 1)
    reason = "ClientApp failed\n<class 'fedapp.errors.DataError'>:<'data-path = '/x': is a file'>"
    query = Message(RecordDict(), 2, "query")
    failed = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=query)
    assert nodes._accept(2, failed) == "it failed: DataError: data-path = '/x': is a file"


def test_a_client_has_one_node_at_a_time():
    nodes, grid = registered(**{"client-id": 0})
    assert nodes.connected(grid, 1.0) == [1]
    assert nodes.rejected[2] == "client-id = 0: node 1 (device-1) is that client already"
    del grid.starts[1]
    assert nodes.connected(grid, 1.0) == [2]


def test_sigterm_ends_a_training_process_without_a_failed_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower's handler would report one, and its SuperNode wait for the reply for ever."""
    called: list[int] = []
    monkeypatch.setattr(node_module, "train", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.signal(signal.SIGTERM, lambda number, _: called.append(number))
    try:
        with pytest.raises(KeyboardInterrupt):
            client_app(
                Message(RecordDict(), 1, MessageType.TRAIN),
                Context(RUN_ID, 1, {}, RecordDict(), {}),
            )
        assert called == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert called == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
