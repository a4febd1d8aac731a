"""The peephole LSTM beside torch.nn.LSTM: `python -m benchmarks.lstm`.

Forward and backward of the character model of McMahan et al. 2017 (258 symbols, embedding 8, two
layers of 256), with its own layers and with ``torch.nn.LSTM`` of the same size in their place,
which on the CPU is one oneDNN kernel a layer, without peepholes. The two take turns within one run;
the ratio is that of the medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Annotated, cast

import torch
import typer
from torch import Tensor, nn

from fedapp.models.lstm import TokenLSTM

SYMBOLS, EMBEDDING, HIDDEN, LAYERS = 258, 8, 256, 2


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
    """Compute the loss and its gradient."""
    network.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(network(tokens), targets).backward()  # type: ignore[no-untyped-call]


def inference(network: nn.Module, tokens: Tensor) -> None:
    """Compute the logits only."""
    with torch.no_grad():
        network(tokens)


def alternating_seconds(
    work: Sequence[Callable[[], None]], repeats: int, calls: int
) -> list[float]:
    """Return the median seconds of one call of each piece of work, measured in turns."""
    times: list[list[float]] = [[] for _ in work]
    for _ in range(repeats + 1):
        for piece, measured in zip(work, times, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                piece()
            measured.append((time.perf_counter() - start) / calls)
    return [statistics.median(measured[1:]) for measured in times]  # the first turn warms up


def main(
    batch: Annotated[int, typer.Option(help="Sequences a batch.")] = 10,
    length: Annotated[int, typer.Option(help="Steps a sequence.")] = 80,
    threads: Annotated[list[int] | None, typer.Option(help="CPU threads. [default: 1 2]")] = None,
    repeats: Annotated[int, typer.Option(min=5, help="Turns of which the median is taken.")] = 9,
    calls: Annotated[int, typer.Option(min=1, help="Calls in each turn.")] = 5,
) -> None:
    """Print one row for each number of threads: milliseconds a call, and the ratio."""
    torch.manual_seed(0)
    own, fused = TokenLSTM(SYMBOLS, EMBEDDING, HIDDEN, LAYERS, forget_bias=1.0), FusedLSTM()
    tokens = torch.randint(SYMBOLS, (batch, length))
    targets = torch.randint(SYMBOLS, (batch, length))
    print(f"char-LSTM, batch {batch}, T = {length}, torch {torch.__version__}, float32, CPU")
    print(f"{'':22}{'threads':>8}{'peephole':>12}{'nn.LSTM':>12}{'ratio':>8}")
    rows: dict[str, list[Callable[[], None]]] = {
        "forward and backward": [
            lambda: step(own, tokens, targets),
            lambda: step(fused, tokens, targets),
        ],
        "forward": [lambda: inference(own, tokens), lambda: inference(fused, tokens)],
    }
    for count in threads or [1, 2]:
        torch.set_num_threads(count)
        for name, work in rows.items():
            ours, theirs = (1e3 * s for s in alternating_seconds(work, repeats, calls))
            print(f"{name:22}{count:8}{ours:9.1f} ms{theirs:9.1f} ms{ours / theirs:8.2f}")


if __name__ == "__main__":
    typer.run(main)
