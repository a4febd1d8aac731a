"""Replies that are there in part: Flower takes them from the SuperLink, and waits for the rest."""

import threading

import httpx
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run, RunNotRunningException

from fedapp.federation import delivery as module
from fedapp.federation.aggregation import collect_replies
from fedapp.federation.delivery import Delivery, grace_period, repeat_failed_requests
from fedapp.federation.evaluation import collect_scores
from fedapp.federation.validation import Expected
from fedapp.training.client import TrainRequest
from fedapp.training.round_plan import RoundPlan
from tests.test_delivery import Clock, SlowGrid, ask
from tests.test_exchange import Clock as SleepClock

pytestmark = pytest.mark.usefixtures("server_identity")

DEADLINE = 1.0


class HttpGrid:
    """Named as Flower's: takes replies out of the store, and then waits until they are whole.

    All nodes have replied, those of ``in_part`` in part.
    """

    def __init__(self, in_part=()):
        self.base = {node: threading.Event() for node in in_part}
        self.waiting, self.taken, self.threads = {}, [], set()

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = key = f"m{message.metadata.dst_node_id}"
            self.waiting[key] = message
            yield key

    def pull_messages(self, keys):
        self.threads.add(threading.current_thread())
        messages = [self.waiting.pop(key) for key in keys if key in self.waiting]
        self.taken += [message.metadata.message_id for message in messages]
        for message in messages:
            if message.metadata.dst_node_id in self.base:
                assert self.base[message.metadata.dst_node_id].wait(30)
        return [Message(RecordDict(), reply_to=message) for message in messages]

    def finalize(self):
        """Let the rest of all replies come in, and the threads that wait for it end."""
        for whole in self.base.values():
            whole.set()
        for thread in self.threads - {threading.current_thread()}:
            thread.join(30)


@pytest.fixture
def federation(monkeypatch):
    """Return a delivery whose time passes while it sleeps, and a grid with some replies in part."""
    clock, grids = SleepClock(), []
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "FETCH_SECONDS", 0.2)

    def make(*in_part):
        grids.append(HttpGrid(in_part))
        return Delivery(clock.monotonic), grids[-1], clock

    yield make
    for grid in grids:
        grid.finalize()


def test_a_reply_in_part_is_lost_at_the_deadline_and_holds_up_no_other(federation):
    delivery, grid, clock = federation(1)
    found = list(delivery.exchange(grid, ask(1, 2, 3), DEADLINE))
    assert [index for index, _ in found] == [1, 2, 0]
    assert all(not reply.has_error() for _, reply in found[:2])
    assert found[2][1] == ("lost", "its reply came only in part within round-deadline = 1 s")
    assert clock.now == pytest.approx(100 + DEADLINE)
    assert delivery.busy([1, 2, 3]) == {1}


def test_a_superlink_that_fails_once_loses_no_reply(federation, monkeypatch, caplog):
    """As its database is locked while many nodes write: the reply is fetched when it answers again."""
    delivery, grid, _ = federation()
    pull, failures = grid.pull_messages, iter([500, 503])

    def failing(keys):
        if "m1" in keys and (status := next(failures, None)):
            request = httpx.Request("POST", "https://superlink/v1/runtime/pull-messages")
            raise httpx.HTTPStatusError("", request=request, response=httpx.Response(status))
        return pull(keys)

    monkeypatch.setattr(grid, "pull_messages", failing)
    found = list(delivery.exchange(grid, ask(1, 2), DEADLINE))
    assert [index for index, reply in found if isinstance(reply, Message)] == [1, 0]
    assert caplog.text.count("is asked again") == 2


def test_many_replies_in_part_hold_up_no_other(federation, monkeypatch):
    """They are looked for two at a time, and each look leaves them to their threads."""
    monkeypatch.setattr(module, "MAX_FETCHES", 2)
    delivery, grid, _ = federation(1, 2, 3)
    found = dict(delivery.exchange(grid, ask(1, 2, 3, 4), DEADLINE))
    assert isinstance(found[3], Message)
    assert {found[index].kind for index in range(3)} == {"lost"}


def test_no_more_replies_are_fetched_than_one_batch_before_they_are_handed_on(
    federation, monkeypatch
):
    monkeypatch.setattr(module, "MAX_FETCHES", 2)
    delivery, grid, _ = federation()
    replies = delivery.exchange(grid, ask(*range(1, 8)), DEADLINE)
    assert [len(grid.taken) for _ in replies] == [2, 2, 4, 4, 6, 6, 7]


def test_with_over_selection_a_slow_upload_is_not_waited_for(federation):
    delivery, grid, clock = federation(1)
    replies = delivery.exchange(grid, ask(1, 2), DEADLINE)
    assert next(replies)[0] == 1
    replies.close()
    assert clock.now == 100
    grid.finalize()
    delivery.begin_round(grid)
    assert (delivery.late, delivery.busy([1, 2])) == (1, set())


def test_a_reply_that_gets_whole_in_time_counts(federation):
    delivery, grid, _ = federation(1)
    replies = delivery.exchange(grid, ask(1, 2), DEADLINE)
    assert next(replies)[0] == 1
    grid.finalize()
    assert [index for index, _ in replies] == [0]
    assert delivery.busy([1, 2]) == set()


def test_the_next_round_goes_on_beside_a_pull_that_waits_and_drops_what_it_brings(federation):
    delivery, grid, _ = federation(1)
    list(delivery.exchange(grid, ask(1), DEADLINE))
    delivery.begin_round(grid)
    assert [index for index, _ in delivery.exchange(grid, ask(2, 3), DEADLINE)] == [0, 1]
    assert (delivery.late, delivery.busy([1, 2, 3])) == (0, {1})
    grid.finalize()
    delivery.begin_round(grid)
    assert (delivery.late, delivery.busy([1, 2, 3])) == (1, set())
    assert sorted(grid.taken) == ["m1", "m2", "m3"]


def test_a_device_is_busy_for_as_long_as_its_reply_is_there_in_part(federation):
    delivery, grid, clock = federation(1)
    list(delivery.exchange(grid, ask(1), DEADLINE))
    clock.now += 100 * DEADLINE
    assert delivery.busy([1, 2]) == {1}
    grid.finalize()
    delivery.begin_round(grid)
    assert delivery.busy([1, 2]) == set()


def test_what_a_pull_brings_from_a_node_that_went_away_is_forgotten(federation):
    delivery, grid, _ = federation(1)
    list(delivery.exchange(grid, ask(1), DEADLINE))
    assert delivery.busy([2]) == set()
    grid.finalize()
    delivery.begin_round(grid)
    assert delivery.late == 0


def test_a_pull_that_waits_does_not_keep_the_process(federation):
    delivery, grid, _ = federation(1)
    list(delivery.exchange(grid, ask(1), DEADLINE))
    assert [thread.daemon for thread in grid.threads if thread.is_alive()] == [True]


def test_a_query_that_is_answered_in_part_is_left_for_later(federation):
    delivery, grid, _ = federation(1)
    assert [i for i, _ in delivery.exchange(grid, ask(1, 2), 9.0, max_wait=DEADLINE)] == [1]
    assert delivery.collect_late(grid) == []
    grid.finalize()
    assert [node for node, _ in delivery.collect_late(grid)] == [1]


class Travelling(SlowGrid):
    """A look takes a second, and each is for one reply."""


Travelling.__name__ = "HttpGrid"


def test_the_last_look_is_at_the_deadline():
    """The five looks that a deadline of 5 s has room for do not find it: the sixth does."""
    clock = Clock()
    delivery, grid = Delivery(clock), Travelling(clock, {1: 6})
    assert [index for index, _ in delivery.exchange(grid, ask(1), 5)] == [0]
    assert grid.looks == [["m1"]] * 6


def test_a_look_goes_on_where_the_last_one_found_replies(monkeypatch):
    monkeypatch.setattr(module, "MAX_FETCHES", 1)
    clock = Clock()
    delivery, grid = Delivery(clock), Travelling(clock, {3: 0, 4: 0})
    assert [index for index, _ in delivery.exchange(grid, ask(1, 2, 3, 4), 6)] == [2, 3]
    assert grid.looks[:6] == [["m1"], ["m2"], ["m3"], ["m4"], ["m1"], ["m2"]]


def test_late_replies_are_dropped_batch_by_batch_but_all_of_them(monkeypatch):
    monkeypatch.setattr(module, "MAX_FETCHES", 1)
    clock = Clock()
    delivery, grid = Delivery(clock), Travelling(clock, {1: 0, 2: 9, 3: 9, 4: 9})
    replies = delivery.exchange(grid, ask(1, 2, 3, 4), 50)
    assert next(replies)[0] == 0
    replies.close()
    clock.now = 9
    delivery.begin_round(grid)
    assert (delivery.late, delivery.busy([1, 2, 3, 4])) == (3, set())


class Restarts:
    """Connections of nodes 1 to 3, of which 1 and 2 have connected anew when they are looked at again."""

    def __init__(self, then=lambda: None):
        self.looks, self.then = 0, then

    def __call__(self, grid):
        self.looks += 1
        if self.looks > 1:
            self.then()
        return {1: self.looks, 2: self.looks, 3: 1}


def test_a_node_that_is_restarted_is_waited_for_no_longer_unless_it_left_its_reply(federation):
    """Flower does not give its new process the message that the last one had taken."""
    _, _, clock = federation()
    grid = Travelling(clock, {3: 50})
    restarts = Restarts(lambda: grid.takes.update({2: 0}))
    replies = Delivery(clock.monotonic, connections=restarts).exchange(grid, ask(1, 2, 3), 90)
    assert next(replies) == (0, ("lost", "its node was restarted, or had lost its connection"))
    index, reply = next(replies)
    assert (index, isinstance(reply, Message)) == (1, True)
    assert clock.now < 100 + 20
    assert [index for index, _ in replies] == [2]
    assert restarts.looks < 10


def test_a_reply_of_which_a_part_has_come_is_waited_for_though_its_node_was_restarted(federation):
    _, grid, clock = federation(1)
    restarts = Restarts(grid.finalize)
    replies = Delivery(clock.monotonic, connections=restarts).exchange(grid, ask(1), 90)
    assert [isinstance(reply, Message) for _, reply in replies] == [True]


def test_a_reply_that_flower_cannot_build_takes_no_other_down():
    clock = Clock()
    delivery, grid = Delivery(clock), Travelling(clock, {1: 0, 2: 0}, damaged=[1])
    found = dict(delivery.exchange(grid, ask(1, 2), 5))
    assert found[0].kind == "malformed"
    assert isinstance(found[1], Message)


def test_a_run_that_was_stopped_is_stopped_by_any_thread(federation, monkeypatch):
    delivery, grid, _ = federation()

    def stopped(keys):
        raise RunNotRunningException

    monkeypatch.setattr(grid, "pull_messages", stopped)
    with pytest.raises(RunNotRunningException):
        list(delivery.exchange(grid, ask(1), DEADLINE))


def test_a_grid_in_the_process_is_asked_for_all_replies_at_once_in_this_thread(federation):
    class LocalGrid(HttpGrid):
        pass

    delivery, _, _ = federation()
    grid = LocalGrid()
    assert [index for index, _ in delivery.exchange(grid, ask(1, 2), DEADLINE)] == [0, 1]
    assert grid.threads == {threading.current_thread()}


# ---------------------------------------------------------------------- what Flower says


def fault(message):
    """Return what a round says of client 7, for which this is the reply."""
    order = TrainRequest(RoundPlan(), (7,))
    expected = Expected({}, {7: 10})
    return collect_replies([order], [(0, message)], expected, 1, 40.0).faults[7]


LATE = [
    (ErrorCode.MESSAGE_UNAVAILABLE, "It may have expired, been deleted, or never existed."),
    (ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "The reply message has expired."),
]


class UnavailableGrid(SlowGrid):
    """Its replies are Flower's error for one that it does not have."""

    error: Error

    def pull_messages(self, keys):
        sent = {key: message for key, (_, message) in self.waiting.items()}
        keys = [reply.metadata.reply_to_message_id for reply in super().pull_messages(keys)]
        return [Message(self.error, reply_to=sent[key]) for key in keys]


@pytest.mark.parametrize(("code", "reason"), LATE)
def test_a_reply_that_is_not_there_is_late_after_the_deadline_and_has_flowers_reason_before(
    code, reason, caplog
):
    clock = Clock()
    delivery, grid = Delivery(clock), UnavailableGrid(clock, {1: 0, 2: 4})
    grid.error = Error(code, reason)
    found = dict(delivery.exchange(grid, ask(1, 2), 4))
    assert fault(found[0]) == ("late", reason)
    assert fault(found[1]) == ("late", "no reply within round-deadline = 4 s")
    cohorts, replies = [(1, [7]), (2, [8])], found.items()
    collect_scores(cohorts, replies, 4.0, has_accuracy=True, node_name="device-{}".format)
    assert f"device-1: clients [7] are left out of this evaluation: {reason}" in caplog.text
    assert "device-2: clients [8] are left out of this evaluation: no reply within" in caplog.text


class SuperLink:
    """What Flower's own grid calls: both nodes replied, and the rest of the first reply never comes."""

    def __init__(self, messages):
        self.messages, self.broken_off = messages, False

    def PushMessages(self, request):
        self.keys = [message.metadata.message_id for message in self.messages]
        self.replies = [Message(RecordDict(), reply_to=message) for message in self.messages]
        self.parts = {}
        for reply in self.replies:
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.parts |= get_all_nested_objects(reply)
        return PushAppMessagesResponse(message_ids=self.keys)

    def PullMessages(self, request):
        found = [self.replies[self.keys.index(key)] for key in request.message_ids]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(m)) for m in found],
            message_object_trees=[get_object_tree(message) for message in found],
        )

    def PullObject(self, request):
        if request.object_id == self.replies[0].object_id:
            return PullObjectResponse(object_found=not self.broken_off)
        content = self.parts[request.object_id].deflate()
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def PushObject(self, request):
        raise AssertionError("nothing was asked for")

    def ConfirmMessageReceived(self, request):
        pass


def test_flowers_own_grid_fetches_one_reply_while_it_waits_for_another(federation):
    """An upload that broke off has the code of a late reply there: its words tell them apart."""
    from flwr.superlink.grid import HttpGrid  # a second of imports

    delivery, _, _ = federation()
    messages = ask(1, 2)
    grid = HttpGrid(token="token")
    grid.set_run(Run.create_empty(1))
    grid._client = server = SuperLink(messages)
    (whole, first), (in_part, second) = delivery.exchange(grid, messages, DEADLINE)
    assert (whole, isinstance(first, Message), in_part) == (1, True, 0)
    assert second.kind == "lost"
    server.broken_off = True
    for thread in threading.enumerate():
        if thread.name.startswith("pull "):
            thread.join(30)
    ((node, reply),) = delivery.collect_late(grid)
    assert node == 1
    assert fault(reply) == ("lost", "its reply came only in part, and its upload broke off")


@pytest.mark.parametrize(
    ("request_", "status", "calls"),
    [
        ("pull-object", 500, 2),
        ("confirm-message-received", 500, 2),
        ("pull-messages", 500, 1),
        ("pull-messages", 503, 2),  # Flower's own repetition
    ],
)
def test_what_flower_would_not_give_out_again_is_asked_for_again(request_, status, calls):
    from flwr.superlink.grid import HttpGrid  # a second of imports

    called = []

    def answer(request):
        called.append(request)
        return httpx.Response(200 if len(called) > 1 else status, request=request)

    grid = HttpGrid(token="token")
    repeat_failed_requests(grid)
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:

        def call():
            return client.post(f"https://superlink/v1/runtime/{request_}").raise_for_status()

        if calls == 1:
            with pytest.raises(httpx.HTTPStatusError):
                grid._retry_invoker.invoke(call)
        else:
            assert grid._retry_invoker.invoke(call).is_success
    assert len(called) == calls


def test_grace_is_a_twentieth_of_the_deadline_and_five_seconds_at_most():
    assert (grace_period(40.0), grace_period(3600.0)) == (2.0, 5.0)
