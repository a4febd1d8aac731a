"""Convolutions of several clients at once, as Triton kernels.

cuDNN runs a grouped convolution one group at a time, and several kernels for each. Here one kernel
computes all groups, in the precision of its inputs (no TF32).

Inputs are [n, G, C, H, W] for n examples of G groups, weights [G O, C, h, w], and results
[n, G, O, H', W'], as of :func:`torch.nn.functional.conv2d` with ``groups`` and stride 1. Examples and
groups may lie in memory in any order; results lie there group by group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

PIXELS = 128
"""Pixels that a tile of a weight gradient is summed over at a time."""
ENOUGH_PROGRAMS = 256
"""Programs that occupy a GPU of about 100 multiprocessors."""
MANY_PROGRAMS = 1200
"""Programs, of sums that can be split, whose times even out."""
MAX_PARTS = 64
"""Parts at most that a weight gradient is summed from."""
MAX_OUTPUTS = 16
"""Channels of a group's result up to which the weight's gradient is faster here than by cuDNN."""


def convolution(inputs: Tensor, weight: Tensor, padding: Sequence[int]) -> Tensor:
    """Return the convolution of each group."""
    by_group = weight.reshape(inputs.shape[1], -1, *weight.shape[1:])
    return _correlate(inputs, by_group.permute(0, 3, 4, 2, 1).contiguous(), padding)


def convolution_backward(
    gradient: Tensor,
    inputs: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients with respect to inputs and weight where ``mask`` asks for them."""
    by_inputs = by_weight = None
    if mask[0]:
        by_group = weight.reshape(inputs.shape[1], -1, *weight.shape[1:])
        around = [size - 1 - pad for size, pad in zip(weight.shape[2:], padding, strict=True)]
        by_inputs = _correlate(
            gradient, by_group.permute(0, 3, 4, 1, 2).contiguous(), around, flipped=True
        )
    if mask[1] and gradient.shape[2] > MAX_OUTPUTS:
        by_weight = _weight_gradient_of_cudnn(gradient, inputs, weight, padding)
    elif mask[1]:
        by_weight = _weight_gradient(gradient, inputs, weight, padding)
    return by_inputs, by_weight


def _correlate(
    inputs: Tensor, weight: Tensor, padding: Sequence[int], *, flipped: bool = False
) -> Tensor:
    """Return the convolution by a weight of shape [G, h, w, C, O], flipped in h and w or not."""
    groups, height, width, channels, outputs = weight.shape
    inputs = _with_whole_images(inputs)
    n, _, _, rows, columns = inputs.shape
    out_rows = rows + 2 * padding[0] - height + 1
    out_columns = columns + 2 * padding[1] - width + 1
    result = inputs.new_empty(groups, n, outputs, out_rows, out_columns).transpose(0, 1)
    tile, size = _tile_of(channels, outputs, n * out_rows * out_columns, groups)
    grid = (triton.cdiv(n * out_rows * out_columns, size), triton.cdiv(outputs, tile), groups)
    _correlation[grid](
        inputs, weight, result, n * out_rows * out_columns, *inputs.stride()[:2],
        *result.stride()[:2], channels, outputs, rows, columns, out_rows, out_columns, height, width,
        *padding, flipped, tile, size,
    )  # fmt: skip
    return result


def _with_whole_images(inputs: Tensor) -> Tensor:
    """Return inputs whose channels, rows and columns are contiguous."""
    return inputs if inputs[0, 0].is_contiguous() else inputs.contiguous()


def _tile_of(channels: int, outputs: int, pixels: int, groups: int) -> tuple[int, int]:
    """Return how many channels and pixels of the result one program computes, as is best on an H100."""
    programs = groups * triton.cdiv(outputs, 16) * triton.cdiv(pixels, 1024)
    tile, size = (16, 1024) if channels >= 32 and programs >= ENOUGH_PROGRAMS else (8, 512)
    return min(triton.next_power_of_2(outputs), tile), size


def _weight_gradient_of_cudnn(
    gradient: Tensor, inputs: Tensor, weight: Tensor, padding: Sequence[int]
) -> Tensor:
    """Return the gradient with respect to the weight, by PyTorch."""
    groups = inputs.shape[1]
    grouped = gradient.flatten(1, 2).contiguous(), inputs.flatten(1, 2).contiguous()
    options = [1, 1], padding, [1, 1], False, [0, 0], groups, [False, True, False]
    found: Tensor = torch.ops.aten.convolution_backward(*grouped, weight, None, *options)[1]
    return found


def _weight_gradient(
    gradient: Tensor, inputs: Tensor, weight: Tensor, padding: Sequence[int]
) -> Tensor:
    """Return the gradient with respect to the weight, summed over fixed parts of the pixels."""
    gradient, inputs = _with_whole_images(gradient), _with_whole_images(inputs)
    n, groups, channels, rows, columns = inputs.shape
    outputs, out_rows, out_columns = gradient.shape[2:]
    height, width = weight.shape[2:]
    in_tile = min(triton.next_power_of_2(channels), 8)
    out_tile = min(triton.next_power_of_2(outputs), 8)
    tiles, taps = triton.cdiv(channels, in_tile) * triton.cdiv(outputs, out_tile), height * width
    blocks = triton.cdiv(n * out_rows * out_columns, PIXELS)
    parts = min(triton.cdiv(MANY_PROGRAMS, groups * tiles * taps), blocks, MAX_PARTS)
    a_part = triton.cdiv(blocks, parts)
    parts = triton.cdiv(blocks, a_part)
    sums = weight.new_empty(parts, *weight.shape)
    _weight_gradients[(taps, tiles, groups * parts)](
        gradient, inputs, sums, n * out_rows * out_columns, groups, a_part, *gradient.stride()[:2],
        *inputs.stride()[:2], channels, outputs, rows, columns, out_rows, out_columns, height, width,
        *padding, in_tile, out_tile, PIXELS, num_warps=2 if in_tile < 8 else 4,
    )  # fmt: skip
    return sums.sum(0) if parts > 1 else sums[0]


@triton.jit(do_not_specialize=["pixels"])
def _correlation(
    inputs, weight, result, pixels, from_example, from_group, to_example, to_group,
    C: tl.constexpr, O: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, FLIPPED: tl.constexpr, TILE: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the result: channels of one group, by pixels of several examples."""
    group = tl.program_id(2)
    pixel = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    channel = tl.program_id(1) * TILE + tl.arange(0, TILE)
    example, place = pixel // (OUT_H * OUT_W), pixel % (OUT_H * OUT_W)
    row, column = place // OUT_W - PAD_H, place % OUT_W - PAD_W
    valid = pixel < pixels
    first = inputs + example * from_example + group * from_group
    weight += group * (KERNEL_H * KERNEL_W * C * O) + channel
    total = tl.zeros([TILE, SIZE], result.dtype.element_ty)
    for tap in range(KERNEL_H * KERNEL_W):
        y, x = row + tap // KERNEL_W, column + tap % KERNEL_W
        inside = valid & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        at = first + y * W + x
        own = KERNEL_H * KERNEL_W - 1 - tap if FLIPPED else tap
        for c in tl.range(C, loop_unroll_factor=C if C <= 16 else 8):
            value = tl.load(at + c * (H * W), mask=inside, other=0.0)
            factor = tl.load(weight + (own * C + c) * O, mask=channel < O, other=0.0)
            total += factor[:, None] * value[None, :]
    to = result + example * to_example + group * to_group + place
    to = to[None, :] + channel[:, None] * (OUT_H * OUT_W)
    tl.store(to, total, mask=(channel < O)[:, None] & valid[None, :])


@triton.jit(
    do_not_specialize=["pixels", "groups", "a_part"],
    do_not_specialize_on_alignment=["gradient", "inputs"],  # wide loads would need other layouts
)
def _weight_gradients(
    gradient, inputs, sums, pixels, groups, a_part, gradient_example, gradient_group,
    input_example, input_group, C: tl.constexpr, O: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    OUT_H: tl.constexpr, OUT_W: tl.constexpr, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, IN_TILE: tl.constexpr, OUT_TILE: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one tap's gradient in one group, summed over a part of the pixels."""
    tap, group, part = tl.program_id(0), tl.program_id(2) % groups, tl.program_id(2) // groups
    in_tiles: tl.constexpr = (C + IN_TILE - 1) // IN_TILE
    c = (tl.program_id(1) % in_tiles) * IN_TILE + tl.arange(0, IN_TILE)
    o = (tl.program_id(1) // in_tiles) * OUT_TILE + tl.arange(0, OUT_TILE)
    down, right = tap // KERNEL_W - PAD_H, tap % KERNEL_W - PAD_W
    inputs += group * input_group
    gradient += group * gradient_group
    total = tl.zeros([OUT_TILE, IN_TILE, SIZE], sums.dtype.element_ty)
    for block in range(part * a_part, (part + 1) * a_part):
        pixel = block * SIZE + tl.arange(0, SIZE)
        example, place = pixel // (OUT_H * OUT_W), pixel % (OUT_H * OUT_W)
        y, x = place // OUT_W + down, place % OUT_W + right
        valid = pixel < pixels
        inside = valid & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        at = inputs + example * input_example + y * W + x
        value = tl.load(
            at[None, :] + c[:, None] * (H * W),
            mask=(c < C)[:, None] & inside[None, :],
            other=0.0,
        )
        at = gradient + example * gradient_example + place
        factor = tl.load(
            at[None, :] + o[:, None] * (OUT_H * OUT_W),
            mask=(o < O)[:, None] & valid[None, :],
            other=0.0,
        )
        total += factor[:, None, :] * value[None, :, :]
    to = sums + (part * groups + group) * (O * C * KERNEL_H * KERNEL_W) + tap
    to = to + (o[:, None] * C + c[None, :]) * (KERNEL_H * KERNEL_W)
    tl.store(to, tl.sum(total, 2), mask=(o < O)[:, None] & (c < C)[None, :])
