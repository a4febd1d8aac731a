"""Recurrent language models: an embedding, peephole LSTM layers, an output layer."""

from __future__ import annotations

from typing import ClassVar, cast

from pydantic import Field
from torch import Tensor, nn

from fedapp.data.dataset import Task
from fedapp.models.model import Model
from fedapp.models.peephole import PeepholeLSTM


class Recurrent(Model):
    """An embedding, peephole LSTM layers and an output layer, for sequences of tokens."""

    takes: ClassVar[frozenset[str]] = frozenset({"tokens"})

    light: ClassVar[bool] = False

    causal: ClassVar[bool] = True

    embedding: int = Field(8, ge=1, description="Numbers that a symbol is embedded in.")
    hidden: int = Field(256, ge=1, description="Units of each LSTM layer.")
    layers: int = Field(2, ge=1, description="LSTM layers.")
    forget_bias: float = Field(
        1.0, description="Start of the forget gates' bias, above the others'."
    )

    def build(self, task: Task) -> nn.Module:
        """Return the network: tokens [n, T] to logits of the next tokens [n, C, T].

        Where a sequence has one label, to its logits [n, C] after the last token.
        """
        self.require_fit(task)
        return TokenLSTM(task, self.embedding, self.hidden, self.layers, self.forget_bias)


class CharLSTM(Recurrent):
    """The character LSTM: embedding 8, two peephole LSTM layers of 256.

    McMahan et al. 2017, section 3: 866,578 parameters for 258 symbols, which are the 256
    bytes and two markers, begin and end::

        embedding          258 * 8                               2,064
        first LSTM layer   4 * 256 * (8 + 256 + 1) + 3 * 256   272,128
        second LSTM layer  4 * 256 * (256 + 256 + 1) + 3 * 256 526,080
        output             (256 + 1) * 258                      66,306

    That is the paper's number, and the only reading of it: V symbols cost 265 V, and only with
    the three peepholes of a unit and one bias a gate is the rest, 68,370, a multiple of 265.
    The embedding starts standard normal and the output layer uniform in +-1/sqrt(256), PyTorch's
    defaults; the LSTM layers uniform in +-1/sqrt(256), with ``forget_bias`` added to the forget
    gates' bias, 1 as in TensorFlow. The paper does not state its own.
    """

    name: ClassVar[str] = "char-lstm"


class WordLSTM(Recurrent):
    """The word LSTM: embedding 192, one peephole LSTM layer of 256.

    McMahan et al. 2017, section 3: 4,950,544 parameters for 10,000 words::

        embedding   10,000 * 192                            1,920,000
        LSTM layer  4 * 256 * (192 + 256 + 1) + 3 * 256       460,544
        output      (256 + 1) * 10,000                      2,570,000

    That is the paper's number. The paper also says that the *output* embeddings have dimension 192;
    with a projection of the LSTM's 256 units to 192 before them it would be 4,359,888, so the count
    is followed and not the sentence. Initialisation as in ``char-lstm``.
    """

    name: ClassVar[str] = "word-lstm"

    embedding: int = Field(192, ge=1, description="Numbers that a symbol is embedded in.")
    layers: int = Field(1, ge=1, description="LSTM layers.")


class TokenLSTM(nn.Module):
    """Predicts after each token the next one, or after the last one the sequence's label.

    The state is zero at the start of each sequence; sequences with one label are padded on the left.
    """

    def __init__(
        self, task: Task, embedding: int, hidden: int, layers: int, forget_bias: float
    ) -> None:
        super().__init__()
        self.one_label = task.one_label
        self.embedding = nn.Embedding(task.num_symbols or task.num_classes, embedding)
        sizes = [embedding] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(PeepholeLSTM(size, hidden, forget_bias) for size in sizes)
        self.output = nn.Linear(hidden, task.num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits: integers [n, T] to [n, C, T], or [n, C] with one label a sequence."""
        # Steps first up to the output, so that what the recurrence touches in a step is contiguous.
        hidden = cast("Tensor", self.embedding(tokens.t().long()))
        for layer in self.layers:
            hidden = layer(hidden)
        if self.one_label:
            return cast("Tensor", self.output(hidden[-1]))
        return cast("Tensor", self.output(hidden.transpose(0, 1))).transpose(1, 2)
