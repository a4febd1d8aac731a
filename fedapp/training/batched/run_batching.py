"""Stacked runs: the clients of several runs train in one program.

The runs differ in nothing but learning rate and seed. Each goes on in a thread of its own, as if it
were alone, up to where its trainer is called; there they meet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from types import TracebackType

from fedapp.training.batched.compiled_step import CaptureError
from fedapp.training.round_plan import LocalPlan
from fedapp.training.trainer import ClientResult, ClientTask

Train = Callable[[Sequence[ClientTask], LocalPlan], list[ClientResult]]
"""Trains clients of one run or of several, whose plans differ at most in the learning rate."""


@dataclass
class _Hand:
    """What a run handed in, and what becomes of it."""

    train: Train
    tasks: Sequence[ClientTask]
    plan: LocalPlan
    outcomes: list[ClientResult] = field(default_factory=list)
    problem: Exception | None = None
    done: bool = False

    def settle(self) -> None:
        """Train these clients alone; what that raises is the run's own problem."""
        try:
            self.outcomes = self.train(self.tasks, self.plan)
        except Exception as error:
            self.problem = error
        self.done = True


class Stack:
    """A table with ``seats`` for as many runs, at which they wait for each other to train.

    When each of those still seated has handed in its clients, one thread trains them all and hands
    the outcomes back. Runs at a table take turns: one thread works at a time, and lets the next one
    work while it waits, so that nothing that they share (a network, PyTorch's generator, caches)
    is used by two at once.
    """

    def __init__(self, seats: int) -> None:
        self.seats = [Seat(self) for _ in range(seats)]
        self._turn = threading.Condition()
        self._seated = seats
        self._hands: list[_Hand] = []

    def enter(self) -> None:
        """Wait for this thread's turn."""
        self._turn.acquire()

    def leave(self) -> None:
        """Wait no more for a run whose turn it is; the others go on."""
        self._seated -= 1
        self._turn.notify_all()
        self._turn.release()

    def client_updates(
        self, train: Train, tasks: Sequence[ClientTask], plan: LocalPlan
    ) -> list[ClientResult]:
        """Return what ``train`` gives for ``tasks``, which it is given together with the others'."""
        hand = _Hand(train, tasks, plan)
        self._hands.append(hand)
        while not hand.done:
            if len(self._hands) == self._seated:
                hands, self._hands = self._hands, []
                _train(hands)
                self._turn.notify_all()
            else:
                self._turn.wait()
        if hand.problem is not None:
            raise hand.problem
        return hand.outcomes


class Seat:
    """A run's place at the table, for the thread that enters it; left at the end, however it comes."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._before: Token[Stack | None] | None = None

    def __enter__(self) -> Seat:
        self.stack.enter()
        self._before = _STACK.set(self.stack)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            _STACK.reset(self._before)
        self.stack.leave()


_STACK: ContextVar[Stack | None] = ContextVar("stack", default=None)


def current_stack() -> Stack | None:
    """Return the stack at which this thread's run has a seat, or None for a run by itself."""
    return _STACK.get()


def _train(hands: Sequence[_Hand]) -> None:
    """Train all that was handed in; what has the same trainer and plan, together."""
    groups: dict[tuple[Train, LocalPlan], list[_Hand]] = {}
    for hand in hands:
        key = (hand.train, replace(hand.plan, learning_rate=0.0))
        groups.setdefault(key, []).append(hand)
    for group in groups.values():
        if len(group) == 1:
            group[0].settle()
        else:
            _train_together(group)


def _train_together(hands: Sequence[_Hand]) -> None:
    """Train what was handed in together, or, if that raises, each alone to see whose fault it is.

    But not after half a capture, which is everybody's.
    """
    tasks = [task for hand in hands for task in hand.tasks]
    draws = [task.rng.bit_generator.state for task in tasks]
    outcomes: Iterator[ClientResult] | None
    try:
        outcomes = iter(hands[0].train(tasks, hands[0].plan))
    except CaptureError as error:
        for hand in hands:
            hand.problem, hand.done = error, True
        return
    except Exception:
        outcomes = None
    if outcomes is None:  # and the error is gone, with the tensors that it held
        for task, state in zip(tasks, draws, strict=True):
            task.rng.bit_generator.state = state
        for hand in hands:
            hand.settle()
        return
    for hand in hands:
        hand.outcomes = [next(outcomes) for _ in hand.tasks]
        hand.done = True
