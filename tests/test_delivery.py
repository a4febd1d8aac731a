"""Messages and replies against a clock: deadlines, late replies, busy nodes, over-selection."""

import itertools
from collections import Counter

import httpx
import pytest
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import RunNotRunningException

from fedapp.config.read import read_config
from fedapp.engines.grid import RUN_ID
from fedapp.engines.in_process import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.federation import delivery as module
from fedapp.federation.delivery import Delivery
from fedapp.federation.samplers.uniform import Uniform
from fedapp.server_app import app as server_app
from tests.in_process import SMALL, client_app, metrics, run
from tests.sampling import uniform_sample
from tests.test_exchange import Clock as SleepClock

pytestmark = pytest.mark.usefixtures("server_identity")


class Clock:
    """Seconds that pass only when somebody looks for replies."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class SlowGrid:
    """Node n answers `takes[n]` seconds after it was asked, or never; a look takes a second."""

    def __init__(self, clock, takes, damaged=(), refused=()):
        self.clock, self.takes, self.damaged, self.rejected = clock, takes, damaged, refused
        self.waiting, self.ids, self.looks = {}, itertools.count(1), []

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = key = f"m{next(self.ids)}"
            if message.metadata.dst_node_id not in self.rejected:
                self.waiting[key] = (self.clock.now, message)
                yield key

    def pull_messages(self, keys):
        self.looks.append(list(keys))
        self.clock.now += 1
        ready = [key for key in keys if key in self.waiting and self._ready(*self.waiting[key])]
        messages = [self.waiting.pop(key)[1] for key in ready]
        if any(message.metadata.dst_node_id in self.damaged for message in messages):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")
        return [Message(RecordDict(), reply_to=message) for message in reversed(messages)]

    def _ready(self, since, message):
        takes = self.takes.get(message.metadata.dst_node_id)
        return takes is not None and self.clock.now >= since + takes


def ask(*nodes):
    return [Message(RecordDict(), node, MessageType.TRAIN, ttl=5.0) for node in nodes]


def federation(takes, **options):
    clock = Clock()
    return Delivery(clock), SlowGrid(clock, takes, **options), clock


def test_nobody_whose_reply_was_fetched_is_busy_when_the_caller_stops():
    """With over-selection it stops at the first m of the replies that have come together."""
    delivery, grid, _ = federation({1: 1, 2: 1, 3: 9})
    replies = delivery.exchange(grid, ask(1, 2, 3), 5)
    assert next(replies)[0] == 0
    replies.close()
    assert delivery.busy([1, 2, 3]) == {3}


LINK = httpx.Request("POST", "http://link")
LOCKED = httpx.HTTPStatusError("locked", request=LINK, response=httpx.Response(500, request=LINK))
NOT_STORED = ObjectPushError("object", 1, "session")


class FailingGrid(SlowGrid):
    """Its SuperLink fails to take messages as often as there are errors."""

    def __init__(self, clock, takes, errors):
        super().__init__(clock, takes)
        self.errors, self.tries = iter(errors), []

    def push_messages(self, messages):
        self.tries.append(messages)
        for error in self.errors:
            raise error
        return super().push_messages(messages)


@pytest.fixture
def sleeping(monkeypatch):
    """Return a clock whose time passes while a delivery sleeps."""
    clock = SleepClock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize("error", [LOCKED, NOT_STORED])
def test_queries_that_a_failing_superlink_does_not_take_are_lost(error):
    """They are sent again at the next look for nodes."""
    clock = Clock()
    found = dict(Delivery(clock).exchange(FailingGrid(clock, {}, [error]), ask(1, 2), 5))
    assert {index: fault.kind for index, fault in found.items()} == {0: "lost", 1: "lost"}


def test_messages_are_sent_again_while_the_superlink_fails(sleeping):
    """As its database is locked, which an object that it does not store may be all that tells."""
    grid = FailingGrid(sleeping, {1: 0, 2: 0}, [LOCKED, NOT_STORED, LOCKED])
    messages = ask(1, 2)
    replies = Delivery(sleeping.monotonic, repeat_seconds=60).exchange(grid, messages, 50)
    assert [index for index, reply in replies if isinstance(reply, Message)] == [0, 1]
    assert sleeping.sleeps == [1, 2, 4]
    assert grid.tries == [messages] * 4


def test_messages_that_expire_while_the_superlink_fails_are_made_anew(sleeping):
    """And their deadline counts from then on."""
    grid = FailingGrid(sleeping, {1: 4}, [LOCKED] * 3)
    (message,) = ask(1)
    replies = Delivery(sleeping.monotonic, repeat_seconds=60).exchange(grid, [message], 5)
    assert [index for index, reply in replies if isinstance(reply, Message)] == [0]
    last = grid.tries[-1][0]
    assert last is not message
    assert (last.content, last.metadata.dst_node_id, last.metadata.ttl) == (message.content, 1, 5)


def test_a_superlink_that_goes_on_failing_ends_the_run_after_the_node_timeout(sleeping):
    grid = FailingGrid(sleeping, {}, itertools.repeat(LOCKED))
    with pytest.raises(RunError, match=r"1 messages for node-timeout = 60 s.*locked.*resume"):
        list(Delivery(sleeping.monotonic, repeat_seconds=60).exchange(grid, ask(1), 3600))
    assert sleeping.now == 160
    assert max(sleeping.sleeps) == 29


def test_replies_that_are_there_together_come_in_the_order_of_their_messages():
    delivery, grid, _ = federation({1: 0, 2: 3, 3: 0})
    assert [i for i, _ in delivery.exchange(grid, ask(1, 2, 3), 5)] == [0, 2, 1]
    assert delivery.busy([1, 2, 3]) == set()


def test_the_deadline_ends_the_wait_and_the_silent_node_stays_busy_for_as_long_again():
    delivery, grid, clock = federation({1: 0})
    assert [i for i, _ in delivery.exchange(grid, ask(1, 2), 5)] == [0]
    assert clock.now == 5
    assert delivery.busy([1, 2]) == {2}
    clock.now = 9.5
    assert delivery.busy([1, 2]) == {2}
    clock.now = 10.5
    assert delivery.busy([1, 2]) == set()


def test_a_node_that_was_away_is_not_busy():
    delivery, grid, _ = federation({1: 0})
    list(delivery.exchange(grid, ask(1, 2), 5))
    assert delivery.busy([1]) == set()
    assert delivery.busy([1, 2]) == set()


def test_a_reply_to_an_earlier_round_is_counted_and_dropped():
    delivery, grid, clock = federation({1: 0, 2: 3})
    replies = delivery.exchange(grid, ask(1, 2), 8)
    assert next(replies)[0] == 0
    replies.close()
    assert delivery.busy([1, 2]) == {2}
    clock.now = 4
    delivery.begin_round(grid)
    assert (delivery.late, delivery.busy([1, 2])) == (1, set())
    assert [i for i, _ in delivery.exchange(grid, ask(1), 8)] == [0]
    delivery.begin_round(grid)
    assert delivery.late == 0


def test_dropping_late_replies_within_a_round_forgets_no_count():
    delivery, grid, clock = federation({1: 0, 2: 2, 3: 3})
    replies = delivery.exchange(grid, ask(1, 2, 3), 9)
    assert next(replies)[0] == 0
    replies.close()
    clock.now = 2
    delivery.drop_late(grid)
    assert (delivery.late, delivery.busy([1, 2, 3])) == (2, set())
    delivery.drop_late(grid)
    assert delivery.late == 2
    delivery.begin_round(grid)
    assert delivery.late == 0


def test_a_message_that_is_not_taken_is_a_lost_client_and_costs_no_waiting():
    delivery, grid, clock = federation({1: 0}, refused=[2])
    found = dict(delivery.exchange(grid, ask(2, 1), 5))
    assert found[0].kind == "lost"
    assert not found[1].has_error()
    assert clock.now == 1


def test_a_reply_that_flower_cannot_build_takes_no_other_reply_down_twice():
    """The first one takes the batch with it; from then on each reply is fetched alone."""
    delivery, grid, _ = federation({1: 0, 2: 0, 3: 0}, damaged=[2])
    assert dict(delivery.exchange(grid, ask(1, 2, 3), 5)) == {}
    delivery, grid, _ = federation({1: 3, 2: 0, 3: 0}, damaged=[2, 3])
    found = dict(delivery.exchange(grid, ask(1, 2), 5))
    assert list(found) == [0]
    found = dict(delivery.exchange(grid, ask(3, 1), 5))
    assert found[0].kind == "malformed"
    assert "UnicodeDecodeError" in found[0].reason
    assert not found[1].has_error()


def test_a_run_that_was_stopped_is_stopped():
    class Stopped(SlowGrid):
        def pull_messages(self, keys):
            raise RunNotRunningException

    clock = Clock()
    with pytest.raises(RunNotRunningException):
        list(Delivery(clock).exchange(Stopped(clock, {}), ask(1), 5))


# ---------------------------------------------------------------------- whole runs


def test_over_selection_draws_more_and_takes_the_first_m():
    """K = 10, C = 0.5, 40 % more: 7 are asked, 5 count, and the rest are named as surplus."""
    assert uniform_sample(0, 1, range(10), 0.5, extra=0.4) == sorted(
        uniform_sample(0, 1, range(10), 0.7)
    )
    assert len(uniform_sample(0, 1, range(10), 0.5, extra=9.0)) == 10


def test_a_round_closes_when_m_clients_replied_well(tmp_path):
    folder = run(
        tmp_path / "run", nodes=7, over_selection=0.4, num_server_rounds=2, checkpoint_every=1
    )
    first, second = metrics(folder)[1:]
    for record in (first, second):
        assert (len(record["clients"]), record["replied"]) == (7, 5)
        assert set(record["surplus"]) < set(record["clients"])
        assert "failures" not in record
        assert "late_replies" not in record


def test_over_selection_in_one_process_resumes_to_the_same_numbers(tmp_path):
    """Who was not waited for has not begun, and is not busy: neither afterwards nor on a resume."""
    trained = []

    def call(message, context):
        trained.extend([context.node_id] * is_train(message))
        return client_app(message, context)

    settings = {"nodes": 7, "over_selection": 0.4, "num_server_rounds": 4, "call": call}
    whole = run(tmp_path / "whole", **settings)
    rounds = [tuple(trained[i : i + 5]) for i in range(0, 20, 5)]
    assert len(trained) == 20
    assert len(set(rounds)) > 1
    run(tmp_path / "run", **{**settings, "num_server_rounds": 2})
    run(tmp_path / "run", **settings, resume=True)
    assert metrics(whole) == metrics(tmp_path / "run")


def test_over_selection_in_one_process_leaves_no_client_out(tmp_path):
    """Whose replies come first is drawn: of 7 clients on 7 nodes each trains in about 5 of 7 rounds."""
    settings = {"fraction_train": 5 / 7, "over_selection": 0.4, "eval_every": 0}
    folder = run(tmp_path / "run", nodes=7, num_clients=7, num_server_rounds=60, **settings)
    trained = Counter(
        client for record in metrics(folder)[1:] for client in {*range(7)} - {*record["surplus"]}
    )
    assert sorted(trained) == list(range(7))
    assert all(
        abs(count - 60 * 5 / 7) < 4 * (60 * 5 / 7 * 2 / 7) ** 0.5 for count in trained.values()
    )


def test_over_selection_makes_up_for_clients_that_fail(tmp_path):
    def call(message, context):
        if context.node_id <= 2 and message.metadata.message_type == MessageType.TRAIN:
            raise OSError("no space left on device")
        return client_app(message, context)

    folder = run(tmp_path / "run", nodes=7, call=call, over_selection=0.4, num_server_rounds=1)
    record = metrics(folder)[1]
    assert (record["replied"], record["faults"]) == (5, {"raised": 2})
    assert "surplus" not in record
    plain = run(tmp_path / "plain", nodes=5, call=call, num_server_rounds=1)
    assert metrics(plain)[1]["replied"] == 3


def test_min_replies_may_not_exceed_m_however_many_are_asked():
    with pytest.raises(ConfigError, match="clients that train a round is 5 "):
        read_config({**SMALL, "over-selection": 1.0, "min-replies": 6})


class OfflineGrid(InlineGrid):
    """Answers for node 1 as the SuperLink does for one that is gone: in its own name."""

    def pull_messages(self, keys):
        waiting = {key: self._pending[key] for key in keys if key in self._pending}
        for key, message in waiting.items():
            if message.metadata.dst_node_id == 1 and is_train(message):
                del self._pending[key]
                reply = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
                return [reply]
        return super().pull_messages(keys)


def is_train(message):
    return message.metadata.message_type == MessageType.TRAIN


def test_an_answer_of_the_superlink_names_the_node_that_is_lost(tmp_path):
    record = metrics(run(tmp_path / "run", grid=OfflineGrid, num_server_rounds=1))[1]
    assert record["faults"] == {"lost": 3}
    assert set(record["failures"].values()) == {"the node failed: gone"}


class BusyGrid(InlineGrid):
    """Its nodes work by themselves."""

    def cancel_messages(self, keys):
        return []


class SilentGrid(BusyGrid):
    """Node 1 never answers a TRAIN message."""

    def pull_messages(self, keys):
        waiting = {key: self._pending[key] for key in keys if key in self._pending}
        kept = [k for k, m in waiting.items() if m.metadata.dst_node_id != 1 or not is_train(m)]
        return super().pull_messages(kept)


def own_run(folder, grid, nodes=3, **settings):
    """Run with each node a client of its own; return the records."""
    given = {key.replace("_", "-"): value for key, value in settings.items()}
    values = {**SMALL, "num-clients": 0, "fraction-train": 1.0, "run-dir": str(folder), **given}
    configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    context = Context(RUN_ID, SUPERLINK_NODE_ID, {}, RecordDict(), values)
    server_app(grid(client_app, values, configs), context)
    return metrics(folder)[1:]


def test_a_round_that_the_superlink_does_not_take_does_not_count(tmp_path):
    class RefusingGrid(InlineGrid):
        def push_messages(self, messages):
            if is_train(messages[0]) and messages[0].metadata.group_id == "2":
                raise LOCKED
            return super().push_messages(messages)

    with pytest.raises(RunError, match="could not take 2 messages"):
        run(tmp_path / "run", grid=RefusingGrid, num_server_rounds=9, node_timeout=0.1)
    assert [record["round"] for record in metrics(tmp_path / "run")] == [0, 1]


def test_a_silent_node_costs_one_deadline_and_is_then_left_alone_as_busy(tmp_path):
    records = own_run(tmp_path / "run", SilentGrid, num_server_rounds=2, round_deadline=2.0)
    assert [r["faults"] for r in records] == [{"late": 1}, {"busy": 1}]
    assert [r["replied"] for r in records] == [2, 2]
    assert all(r["model_changed"] for r in records)


class RestartedGrid(SilentGrid):
    """Node 1 is started again when it has been sent its first TRAIN message."""

    starts = 1

    def push(self, message_id, message):
        self.starts += is_train(message) and message.metadata.dst_node_id == 1
        super().push(message_id, message)

    def get_nodes(self):
        starts = {**dict.fromkeys(self.contexts, 1), 1: self.starts}
        return [NodeInfo(node_id=n, last_activated_at=str(start)) for n, start in starts.items()]


def test_a_node_that_was_restarted_is_not_busy_with_what_it_was_sent_before(tmp_path):
    records = own_run(tmp_path / "run", RestartedGrid, num_server_rounds=2, round_deadline=2.0)
    assert [r["faults"] for r in records] == [{"late": 1}, {"late": 1}]


def test_a_message_lives_as_long_as_its_reply_is_waited_for(tmp_path):
    lives = []

    class Noting(InlineGrid):
        def push(self, message_id, message):
            if is_train(message):
                lives.append(message.metadata.ttl)
            super().push(message_id, message)

    own_run(tmp_path / "run", Noting, num_server_rounds=1, round_deadline=40.0)
    assert lives == [42.0] * 3


def test_replies_that_come_while_a_round_waits_for_busy_nodes_are_counted(tmp_path, monkeypatch):
    """Round 4 draws the three clients that the others did not wait for, and waits for two of them."""
    draws = {1: [0, 1, 2], 2: [0, 1, 3], 3: [0, 1, 4], 4: [2, 3, 4]}
    monkeypatch.setattr(Uniform, "sample", lambda _, candidates: draws[candidates.round])
    monkeypatch.setattr("fedapp.federation.client_sampler.BUSY_SECONDS", 0.01)
    looks = []

    class Slow(BusyGrid):
        def pull_messages(self, keys):
            trains = {key for key in keys if is_train(self._pending[key])}
            slow = {key for key in trains if self._pending[key].metadata.dst_node_id > 2}
            looks.append(slow == set(keys))  # as rounds 2, 3 and 4 begin, then while round 4 waits
            return super().pull_messages(keys if sum(looks) > 3 else set(keys) - slow)

    settings = {"fraction_train": 0.4, "over_selection": 0.5, "min_replies": 2, "min_nodes": 5}
    records = own_run(tmp_path / "run", Slow, nodes=5, num_server_rounds=4, **settings)
    assert [record["replied"] for record in records] == [2, 2, 2, 2]
    assert [record.get("late_replies") for record in records] == [None, None, None, 2]


class GatheringGrid(InlineGrid):
    """A third node comes when it has been looked for ten times, if at all."""

    looks, comes = 0, True

    def get_node_ids(self):
        self.looks += 1
        return list(self.contexts)[: 3 if self.comes and self.looks > 10 else 2]


def test_a_round_waits_for_as_many_clients_as_must_reply(tmp_path, monkeypatch):
    monkeypatch.setattr("fedapp.federation.client_sampler.BUSY_SECONDS", 0.01)
    settings = {"num_server_rounds": 1, "min_nodes": 2, "min_replies": 3}
    record = own_run(tmp_path / "run", GatheringGrid, **settings)[0]
    assert (record["clients"], record["model_changed"]) == ([0, 1, 2], True)
    monkeypatch.setattr(GatheringGrid, "comes", False)
    with pytest.raises(RunError, match="min-replies = 3: with 2 clients connected, 2 are asked"):
        own_run(tmp_path / "none", GatheringGrid, node_timeout=0.2, **settings)


def test_a_query_that_was_lost_is_asked_again_where_the_quorum_needs_the_node(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fedapp.federation.queries.QUERY_AGAIN", 0.3)
    lost = []

    class Losing(InlineGrid):
        def push(self, message_id, message):
            query = message.metadata.message_type == MessageType.QUERY
            if query and message.metadata.dst_node_id == 1 and not lost:
                lost.append(message_id)
            else:
                super().push(message_id, message)

    records = own_run(tmp_path / "run", Losing, num_server_rounds=1, min_nodes=3)
    assert lost
    assert records[0]["replied"] == 3


PRIVATE = {"algorithm": "dp-fedavg", "weighting": "uniform"}


@pytest.mark.parametrize("settings", [{}, PRIVATE], ids=["fedavg", "dp-fedavg"])
def test_a_device_that_holds_more_than_it_said_is_asked_again(tmp_path, settings):
    """Its data grew during round 1: that reply is refused, and what it holds is asked anew.

    It is one of the K clients of DP-FedAvg all the same, whose number is fixed.
    """
    grown = []

    def call(message, context):
        reply = client_app(message, context)
        kind = message.metadata.message_type
        if context.node_id == 1 and kind == MessageType.TRAIN:
            for key in ("examples", "weight")[: 1 if settings else 2]:
                reply.content["clients"][key] = [2 * n for n in reply.content["clients"][key]]
            grown.append(True)
        if context.node_id == 1 and kind == MessageType.QUERY and grown:
            reply.content["node-data"]["examples"] *= 2
        return reply

    class Grown(InlineGrid):
        def __init__(self, client_app, run_config, node_configs):
            super().__init__(call, run_config, node_configs)

    records = own_run(tmp_path / "run", Grown, num_server_rounds=2, **settings)
    assert records[0]["faults"] == {"weight": 1}
    assert "faults" not in records[1]
    assert records[1]["replied"] == 3


def test_a_server_state_that_overflows_leaves_the_model_and_itself_as_they_were(tmp_path, caplog):
    """Adagrad's sum of squares: infinite, it would divide every later update to nothing."""
    settings = {"algorithm": "fedadagrad", "learning-rate": 1e25, "max-update-norm": 0.0}
    settings |= {"batch-size": 0, "clip-norm": 1.0}
    found = metrics(run(tmp_path / "run", num_server_rounds=1, **settings))
    assert not found[1]["model_changed"]
    assert "algorithm = 'fedadagrad' makes nan or infinite values" in caplog.text


def test_a_server_rule_that_gives_nan_leaves_the_model_as_it_was(tmp_path, monkeypatch, caplog):
    from fedapp.training.algorithm import Algorithm

    def broken(self, theta, mean, upload, state, step):
        return {name: tensor * float("nan") for name, tensor in theta.items()}, state

    monkeypatch.setattr(Algorithm, "apply", broken)
    first, second = metrics(run(tmp_path / "run", num_server_rounds=1))
    assert not second["model_changed"]
    assert second["test_loss"] == first["test_loss"]
    assert "makes nan or infinite values" in caplog.text


def test_a_busy_node_is_not_asked_to_evaluate(tmp_path):
    asked = []

    class Watched(SilentGrid):
        def push(self, message_id, message):
            if message.metadata.message_type == MessageType.EVALUATE:
                asked.append(message.metadata.dst_node_id)
            super().push(message_id, message)

    own_run(
        tmp_path / "run", Watched, num_server_rounds=1, round_deadline=2.0, evaluation="clients"
    )
    assert asked == [1, 2, 3, 2, 3]
