"""The peephole LSTM layer: one matrix product a step forward, and one backward.

With gates i, f, g, o, inputs x_t and * element by element (Gers and Schmidhuber 2000; Sak et al.
2014; TensorFlow's ``LSTMCell(use_peepholes=True)``)::

    i_t = sigmoid(W_i x_t + U_i h_{t-1} + b_i + p_i * c_{t-1})
    f_t = sigmoid(W_f x_t + U_f h_{t-1} + b_f + p_f * c_{t-1})
    g_t = tanh(W_g x_t + U_g h_{t-1} + b_g)
    c_t = f_t * c_{t-1} + i_t * g_t
    o_t = sigmoid(W_o x_t + U_o h_{t-1} + b_o + p_o * c_t)
    h_t = o_t * tanh(c_t),        h_0 = c_0 = 0.

``torch.nn.LSTM`` has no peepholes, and autograd would record a dozen operations a step. Therefore the
recurrence is one autograd function: everything that does not depend on the order of time (W x, all
derivative factors, all weight gradients) is computed for all steps at once.

Shapes in this file: T steps, n sequences, H units; ``...`` is nothing, or the number of clients
whose stacked parameters are trained together under ``torch.func.vmap``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PeepholeLSTM(nn.Module):
    """One layer, for sequences [T, n, D] that start from zero states; returns h [T, n, H].

    4 H (D + H + 1) + 3 H parameters: ``weight_input`` [4H, D] and ``weight_hidden`` [4H, H] (gates
    in the order i, f, g, o), one ``bias`` [4H], ``peephole`` [3, H] (i, f, o). All start uniform in
    +-1/sqrt(H), PyTorch's default for LSTMs; ``forget_bias`` is added to b_f once, at the start,
    which without weight decay is the same as adding it in every step, as TensorFlow does.
    It has a first derivative only: a second one raises a RuntimeError.
    """

    def __init__(self, input_size: int, hidden_size: int, forget_bias: float = 1.0) -> None:
        super().__init__()
        bound = 1 / math.sqrt(hidden_size)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))

        self.weight_input = parameter(4 * hidden_size, input_size)
        self.weight_hidden = parameter(4 * hidden_size, hidden_size)
        self.bias = parameter(4 * hidden_size)
        self.peephole = parameter(3, hidden_size)
        with torch.no_grad():
            self.bias[hidden_size : 2 * hidden_size] += forget_bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the hidden states of all steps: [T, n, D] to [T, n, H]."""
        gates = F.linear(inputs, self.weight_input, self.bias)
        apply = cast("Any", _Recurrence.apply)
        return cast("Tensor", apply(gates, self.weight_hidden, self.peephole)[0])


class _Recurrence(torch.autograd.Function):
    """(W x + b [T, ..., n, 4H], U [..., 4H, H], p [..., 3, H]) to h and tensors for backward."""

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, peephole: Tensor) -> tuple[Tensor, ...]:
        return _run(gates, weight, peephole)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if grads[0] is None:
            return None, None, None
        apply = cast("Any", _RecurrenceBackward.apply)
        return cast("tuple[Tensor, ...]", apply(grads[0], *ctx.saved_tensors))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked, shape = _stack(inputs, in_dims, info.batch_size, (1, 0, 0))
        outputs = cast("Any", _Recurrence.apply)(*stacked)
        return tuple(output.unflatten(1, shape) for output in outputs), (1, 1, 1, 1)


class _RecurrenceBackward(torch.autograd.Function):
    """dh and the tensors saved by forward to the derivatives by W x + b, U and p.

    It is a separate function so that ``vmap`` runs it on all stacked clients at once.
    """

    @staticmethod
    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        return _run_backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(_ctx: Any, *_grads: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("the peephole LSTM has no second derivative")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *inputs: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        stacked, shape = _stack(inputs, in_dims, info.batch_size, (1, 0, 0, 1, 1, 1, 1))
        gates, weight, peephole = cast("Any", _RecurrenceBackward.apply)(*stacked)
        outputs = (
            gates.unflatten(1, shape),
            weight.unflatten(0, shape),
            peephole.unflatten(0, shape),
        )
        return outputs, (1, 0, 0)


def _stack(
    tensors: tuple[Tensor, ...],
    dims: tuple[int | None, ...],
    size: int,
    batch_dims: tuple[int, ...],
) -> tuple[list[Tensor], tuple[int, ...]]:
    """Move the dimension that vmap added to ``batch_dims`` and merge it with an outer vmap's."""
    stacked = [
        tensor.unsqueeze(at).expand(*tensor.shape[:at], size, *tensor.shape[at:])
        if dim is None
        else tensor.movedim(dim, at)
        for tensor, dim, at in zip(tensors, dims, batch_dims, strict=True)
    ]
    shape = tuple(stacked[0].shape[batch_dims[0] : -2])
    return [tensor.flatten(at, -3) for tensor, at in zip(stacked, batch_dims, strict=True)], shape


def _run(gates: Tensor, weight: Tensor, peephole: Tensor) -> tuple[Tensor, ...]:
    """Return h, the gates' activations [T, ..., n, 4H], c and tanh(c) of all steps."""
    activations = torch.empty_like(gates, memory_format=torch.contiguous_format)
    gate = _by_gate(activations)
    hidden, cells, tanh_cells = (torch.empty_like(gate.select(-2, 0)) for _ in range(3))
    all_gates, i_and_f = activations.unbind(0), gate.narrow(-2, 0, 2).unbind(0)
    i, f, g, o = (one.unbind(0) for one in gate.unbind(-2))
    h, c, tanh_c = hidden.unbind(0), cells.unbind(0), tanh_cells.unbind(0)
    c_for_i_and_f = cells.unsqueeze(-2).unbind(0)
    p_i_and_f, p_o = peephole.unsqueeze(-3).narrow(-2, 0, 2), peephole.narrow(-2, 2, 1)
    add_matmul, transposed = _add_matmul(weight), weight.mT
    all_gates[0].copy_(gates[0])
    for t, inputs in enumerate(gates.unbind(0)):
        if t > 0:
            add_matmul(inputs, h[t - 1], transposed, out=all_gates[t])
            i_and_f[t].addcmul_(c_for_i_and_f[t - 1], p_i_and_f)
        i_and_f[t].sigmoid_()
        g[t].tanh_()
        torch.mul(i[t], g[t], out=c[t])
        if t > 0:
            c[t].addcmul_(f[t], c[t - 1])
        o[t].addcmul_(c[t], p_o).sigmoid_()
        torch.tanh(c[t], out=tanh_c[t])
        torch.mul(o[t], tanh_c[t], out=h[t])
    return hidden, activations, cells, tanh_cells


def _run_backward(
    grad: Tensor,
    weight: Tensor,
    peephole: Tensor,
    hidden: Tensor,
    activations: Tensor,
    cells: Tensor,
    tanh_cells: Tensor,
) -> tuple[Tensor, ...]:
    """Return the derivatives by the gates' inputs [T, ..., n, 4H], by U and by p.

    ``deltas`` first holds the gates' derivative factors; the loop multiplies them by the gradients from
    later steps, which gives the derivatives by the gates' inputs.
    """
    previous_cells = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
    deltas, to_cell, to_before = _factors(activations, peephole, previous_cells, tanh_cells)
    gate = _by_gate(deltas)
    all_gates, i_f_g = deltas.unbind(0), gate.narrow(-2, 0, 3).unbind(0)
    o_gate, dh = gate.select(-2, 3).unbind(0), grad.unbind(0)
    add_matmul, carry = _add_matmul(weight), torch.zeros_like(previous_cells[0])
    carry_for_i_f_g = carry.unsqueeze(-2)
    for t in range(len(all_gates) - 1, -1, -1):
        later = t + 1 < len(all_gates)
        dh_t = add_matmul(dh[t], all_gates[t + 1], weight) if later else dh[t]
        carry.addcmul_(dh_t, to_cell[t])
        i_f_g[t].mul_(carry_for_i_f_g)
        o_gate[t].mul_(dh_t)
        carry.mul_(to_before[t])
    by_weight = _rows(deltas[1:]).mT @ _rows(hidden[:-1])
    di, df, _, do = gate.unbind(-2)
    by_peephole = [
        (d * c).sum((0, -2)) for d, c in ((di, previous_cells), (df, previous_cells), (do, cells))
    ]
    return deltas, by_weight, torch.stack(by_peephole, -2)


def _factors(
    activations: Tensor, peephole: Tensor, previous_cells: Tensor, tanh_cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the factors of the chain rule that do not depend on later steps, for all steps.

    By the gates' inputs, of dc_t (i, f, g) and of dh_t (o): [T, ..., n, 4H]; from dh_t to dc_t, and
    from dc_t to dc_{t-1}: [T, ..., n, H].
    """
    i, f, g, o = _by_gate(activations).unbind(-2)
    p_i, p_f, p_o = peephole.unsqueeze(-3).unbind(-2)
    factors = torch.empty_like(activations)
    by_i, by_f, by_g, by_o = _by_gate(factors).unbind(-2)
    aten = torch.ops.aten
    aten.sigmoid_backward(g, i, grad_input=by_i)
    aten.sigmoid_backward(previous_cells, f, grad_input=by_f)
    aten.tanh_backward(i, g, grad_input=by_g)
    aten.sigmoid_backward(tanh_cells, o, grad_input=by_o)
    to_cell = aten.tanh_backward(o, tanh_cells).addcmul_(by_o, p_o)
    to_before = torch.addcmul(f, by_i, p_i).addcmul_(by_f, p_f)
    return factors, to_cell, to_before


def _by_gate(gates: Tensor) -> Tensor:
    """View contiguous [..., 4H] as [..., 4, H]: i, f, g, o."""
    return gates.view(*gates.shape[:-1], 4, gates.shape[-1] // 4)


def _rows(tensor: Tensor) -> Tensor:
    """Bring [T, ..., n, m] to [..., T n, m]."""
    return tensor.movedim(0, -3).flatten(-3, -2)


def _add_matmul(weight: Tensor) -> Callable[..., Tensor]:
    """Return the function (total, left, right) -> total + left @ right, of matrices or stacks."""
    return cast("Callable[..., Tensor]", torch.addmm if weight.dim() == 2 else torch.baddbmm)
