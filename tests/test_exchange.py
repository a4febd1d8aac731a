"""Waiting for replies: a grid that can wait is not polled, another one is, by 5 % of the time."""

import pytest

from fedapp.federation import delivery
from fedapp.federation.delivery import Delivery


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now, self.sleeps = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds


class Metadata:
    def __init__(self, key):
        self.message_id = self.reply_to_message_id = key
        self.dst_node_id = 1


class Reply:
    def __init__(self, key):
        self.metadata = Metadata(key)


class PolledGrid:
    """Replies that are there from given times on."""

    def __init__(self, clock, times):
        self.clock, self.times, self.pulls = clock, dict(times), 0

    def push_messages(self, sent):
        return list(self.times)

    def pull_messages(self, ids):
        self.pulls += 1
        there = [key for key in sorted(ids) if self.times[key] <= self.clock.now - 100]
        return [Reply(key) for key in there]


class WaitingGrid(PolledGrid):
    def wait_for_replies(self, ids, seconds):
        first = min(self.times[key] for key in ids)
        self.clock.now = min(max(100 + first, self.clock.now), self.clock.now + seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(delivery, "time", clock)
    return clock


def exchange(grid, seconds):
    """Return the keys of the replies to a message for each of the grid's times."""
    replies = Delivery(grid.clock.monotonic).exchange(grid, [*map(Reply, grid.times)], seconds)
    return [reply.metadata.reply_to_message_id for _, reply in replies]


def test_a_grid_that_waits_is_asked_once_a_reply(clock):
    grid = WaitingGrid(clock, {"a": 2.0, "b": 1.0})
    assert exchange(grid, 10.0) == ["b", "a"]
    assert clock.sleeps == []
    assert (grid.pulls, clock.now) == (2, 102.0)


def test_a_grid_that_waits_keeps_the_deadline(clock):
    assert exchange(WaitingGrid(clock, {"a": 2.0, "b": 1.0}), 1.5) == ["b"]
    assert clock.now == 101.5


@pytest.mark.parametrize(("due", "late"), [(0.05, 0.01), (1.0, 0.05), (4.0, 0.2), (60.0, 0.5)])
def test_a_polled_reply_is_late_by_little(clock, due, late):
    assert exchange(PolledGrid(clock, {"a": due}), 3600.0) == ["a"]
    assert due <= clock.now - 100 <= due + late + 1e-9
    assert clock.sleeps[0] == 0.01
    assert max(clock.sleeps) <= 0.5


def test_a_polled_grid_keeps_the_deadline(clock):
    assert exchange(PolledGrid(clock, {"a": 9.0, "b": 0.0}), 2.0) == ["b"]
    assert clock.now == pytest.approx(102.0)
