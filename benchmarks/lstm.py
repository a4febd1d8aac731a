"""The peephole LSTM beside torch.nn.LSTM: `python -m benchmarks.lstm`.

Forward and backward of the character model of McMahan et al. 2017 (258 symbols, embedding 8, two
layers of 256), with its own layers and with ``torch.nn.LSTM`` of the same size in their place,
which on the CPU is one oneDNN kernel a layer, without peepholes. The two take turns in one run.
Then the same network with its gates saturated, by steps that were too large: with subnormal numbers
as zero, as the trainers take them, and with them as they are.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Annotated, cast

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from fedapp.data.dataset import Task
from fedapp.models.lstm import TokenLSTM
from fedapp.training.device import flush_denormals

SYMBOLS, EMBEDDING, HIDDEN, LAYERS = 258, 8, 256, 2
TASK = Task("tokens", (80,), SYMBOLS)
WARM_UP = 3
STEPS, TOO_LARGE = 30, 30.0
"""Steps after which the gates are saturated, and their learning rate."""


class FusedLSTM(nn.Module):
    """The same network with ``torch.nn.LSTM``: tokens [n, T] to logits [n, C, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS)
        self.output = nn.Linear(HIDDEN, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits: [n, T] to [n, C, T]."""
        hidden, _ = self.lstm(self.embedding(tokens.t()))
        return cast("Tensor", self.output(hidden)).permute(1, 2, 0)


def step(network: nn.Module, tokens: Tensor, targets: Tensor) -> None:
    """Forward and backward: compute the loss and its gradient."""
    network.zero_grad(set_to_none=True)
    F.cross_entropy(network(tokens), targets).backward()


def inference(network: nn.Module, tokens: Tensor, targets: Tensor) -> None:
    """Forward: compute the loss only."""
    with torch.no_grad():
        F.cross_entropy(network(tokens), targets)


def seconds(work: Callable[[], None]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(ours: Callable[[], None], theirs: Callable[[], None], turns: int) -> str:
    """Return both medians, and the median over the turns of the ratio, as columns of the table.

    Each turn calls both once, so that a machine that is slow for a while is slow for both.
    """
    for _ in range(WARM_UP):
        ours()
        theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(turns)]
    own, fused = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(first / second for first, second in pairs)
    return f"{own:9.1f} ms{fused:9.1f} ms{ratio:8.2f}"


def saturate(network: nn.Module, tokens: Tensor, targets: Tensor) -> None:
    """Take steps that are too large for the gates, which are left at 0 and 1."""
    for _ in range(STEPS):
        step(network, tokens, targets)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.sub_(cast("Tensor", parameter.grad), alpha=TOO_LARGE)


def main(
    batch: Annotated[int, typer.Option(help="Sequences a batch.")] = 10,
    length: Annotated[int, typer.Option(help="Steps a sequence.")] = 80,
    threads: Annotated[list[int] | None, typer.Option(help="CPU threads. [default: 1 2]")] = None,
    turns: Annotated[int, typer.Option(min=5, help="Turns of which the medians are taken.")] = 25,
) -> None:
    """Print milliseconds a call and the ratio, for each number of threads."""
    torch.manual_seed(0)
    own, fused = TokenLSTM(TASK, EMBEDDING, HIDDEN, LAYERS, forget_bias=1.0), FusedLSTM()
    tokens = torch.randint(SYMBOLS, (batch, length))
    targets = torch.randint(SYMBOLS, (batch, length))
    print(f"char-LSTM, batch {batch}, T = {length}, torch {torch.__version__}, float32, CPU")
    print(f"{'':22}{'threads':>8}{'peephole':>12}{'nn.LSTM':>12}{'ratio':>8}")
    for count in threads or [1, 2]:
        torch.set_num_threads(count)
        for work in (step, inference):
            name = (work.__doc__ or "").split(":")[0]
            columns = compare(
                functools.partial(work, own, tokens, targets),
                functools.partial(work, fused, tokens, targets),
                turns,
            )
            print(f"{name:22}{count:8}{columns}")
    torch.set_num_threads(1)
    saturate(own, tokens, targets)
    as_they_are = functools.partial(step, own, tokens, targets)
    print(f"\n{'saturated gates':22}{'threads':>8}{'flushed':>12}{'as they are':>12}{'ratio':>8}")
    columns = compare(flush_denormals()(as_they_are), as_they_are, turns)
    print(f"{'Forward and backward':22}{1:8}{columns}")


if __name__ == "__main__":
    typer.run(main)
