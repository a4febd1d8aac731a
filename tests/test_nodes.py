"""What nodes answer when they are asked what they hold, and who is refused for it."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from data_files import write_parquet
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from fedapp import client_app as client_app_module
from fedapp.client_app import app as client_app
from fedapp.config import Scalar, read_config
from fedapp.data import Task
from fedapp.data.agreement import describe_task
from fedapp.data.embedded.digits import Digits
from fedapp.engines.inline import InlineGrid, run_inline
from fedapp.engines.local import RUN_ID, identify
from fedapp.errors import ConfigError
from fedapp.holdings import Holdings, OwnClient, read_holdings
from fedapp.nodes import Nodes
from fedapp.server_app import app as server_app
from tests.in_process import SMALL, metrics

DIGITS = Digits().load()


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    identify(SUPERLINK_NODE_ID)


def spoken(folder: Path, *lines: str) -> Path:
    """Write a folder of text for training and testing."""
    table = {"author": ["x"] * len(lines), "text": list(lines)}
    return write_parquet(folder, {"train": table, "test": table})


def asked_with(server: Path, *folders: Path, **settings: Scalar) -> list[str]:
    """Return of nodes with these folders why each is refused, or nothing."""
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    config = read_config({"dataset": str(server), "num-clients": 0, **given})
    task = read_holdings(config, None).dataset.task
    nodes = [OwnClient(client, str(folder)) for client, folder in enumerate(folders)]
    return [asked(read_holdings(config, node).describe(), task) for node in nodes]


def asked(answer: dict[str, object], task: Task = DIGITS.task) -> str:
    """Return why a node that answers so is refused, or nothing."""
    record = RecordDict({"holdings": ConfigRecord(answer)})  # type: ignore[arg-type]
    nodes = Nodes(read_config({"num-clients": 0}), task, DIGITS.fingerprint, None)
    return nodes._admit(5, Message(record, SUPERLINK_NODE_ID, "query"))


def answer(task: Task = DIGITS.task) -> dict[str, object]:
    """Return what a node with data of this task answers."""
    data = dataclasses.replace(DIGITS, task=task)
    return Holdings(data, None, OwnClient(3)).describe()


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
    assert asked(lacking).startswith(f"it says no {key} of its data")
    assert asked(answer() | {key: b"1"}).startswith(f"it says {key} = b'1' of its data")
    assert asked(answer()) == ""


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often the ClientApp reads data and makes a trainer, from an empty memory."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., object]:
        function = getattr(client_app_module, name)

        def call(*given: object) -> object:
            counts[name] += 1
            return function(*given)

        return call

    for name in ("read_holdings", "make_trainer"):
        monkeypatch.setattr(client_app_module, name, counted(name))
    monkeypatch.setattr(client_app_module, "_KEPT", client_app_module._Kept())
    return counts


@pytest.mark.parametrize("num_clients", [16, 0])
def test_eight_nodes_in_one_process_share_data_and_trainer(
    num_clients: int, built: Counter[str], tmp_path: Path
) -> None:
    """Flower gives each node a partition-id of its own, which virtual clients do not look at."""
    values = {**SMALL, "num-clients": num_clients, "run-dir": str(tmp_path / "run")}
    run_inline(server_app, client_app, values, num_nodes=8)
    assert built == {"read_holdings": 1, "make_trainer": 1}
    record = metrics(tmp_path / "run")[-1]
    assert record["replied"] == len(record["clients"]) == (8 if num_clients else 4)


def test_settings_of_another_type_are_other_settings(built: Counter[str]) -> None:
    """1 and True are equal, and so have one hash: the second must not be taken for the first."""
    contexts = [Context(RUN_ID, 1, {}, RecordDict(), {"num-clients": n}) for n in (1, True)]
    assert client_app_module.workplace_of(contexts[0]).own is None
    with pytest.raises(ConfigError, match="num-clients = True"):
        client_app_module.workplace_of(contexts[1])


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


def test_a_silent_node_holds_up_the_start_no_longer_than_node_timeout() -> None:
    nodes, grid = holding(node_timeout=0.5)
    began = time.monotonic()
    assert nodes.wait(grid) == [1]
    assert time.monotonic() - began < 10
    grid.held = False
    assert nodes.some(grid) == [1, 2]


def test_a_newcomer_that_answers_late_counts_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round waits for its answer for a while, and then goes on without; it is asked but once."""
    monkeypatch.setattr("fedapp.nodes.NEWCOMER_SECONDS", 0.2)
    nodes, grid = holding()
    began = time.monotonic()
    assert [nodes.some(grid) for _ in range(3)] == [[1]] * 3
    assert nodes.clients == [0]
    assert time.monotonic() - began < 10
    grid.held = False
    assert nodes.some(grid) == [1, 2]
    assert nodes.clients == [0, 1]
    assert grid.asked == 1
