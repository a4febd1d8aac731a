"""A GPU that is pretended: its tensors have a shape, a type and a device, but no values.

The device is the one that PyTorch calls "lazy", which nothing here computes on: under
``FakeTensorMode`` only the shapes of results are worked out. (Fake "cuda" tensors cannot be
differentiated without a GPU's driver.) `Watch` sees every operation, also within vmap, grad and the
recording of a program.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedapp.data.transforms.normalise import on_device
from fedapp.training.batched.compiled_step import GraphPool
from fedapp.training.build import _batched

GPU = torch.device("lazy:0")
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default, aten._foreach_copy_.default}
"""What may have tensors of two devices."""

WAITS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.masked_select.default,
    aten._unique2.default,
}
"""What the host waits for."""


class Watch(TorchDispatchMode):
    """Notes what a GPU would refuse, how often it is waited for, and how often it is called.

    ``problems``: an operation on two devices, or one that a CUDA graph cannot hold while it is
    captured. ``waits``: values that the host reads. ``launches``: operations outside of graphs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problems: Counter[str] = Counter()
        self.waits = self.launches = 0
        self.capturing = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = _tensors((args, kwargs))
        self._check_devices(func, given)
        if func is aten._local_scalar_dense.default and isinstance(given[0], FakeTensor):
            result: Any = 1.0 if given[0].is_floating_point() else 1
        else:
            result = func(*args, **(kwargs or {}))
        self._note(func, args, _places(given), _places(_tensors(result)))
        return result

    def _check_devices(self, func: Any, given: Sequence[Tensor]) -> None:
        """A number that lies on the CPU may take part in what is done value by value, and no more."""
        if len({tensor.device.type for tensor in given}) < 2 or func in COPIES:
            return
        pointwise = torch.Tag.pointwise in func.tags
        if any(t.device.type == "cpu" and (t.dim() or not pointwise) for t in given):
            self.problems[f"{func} on {[str(tensor.device) for tensor in given]}"] += 1

    def _note(self, func: Any, args: tuple[Any, ...], given: set[str], results: set[str]) -> None:
        if GPU.type not in given | results:
            return
        by_mask = func.overloadpacket in (aten.index, aten.index_put, aten.index_put_) and any(
            tensor.dtype == torch.bool for tensor in _tensors(args[1])
        )
        waited = func in WAITS or by_mask
        across = func in COPIES and len(given | results) > 1
        if self.capturing and (waited or across):
            self.problems[f"{func} in a captured graph"] += 1
        self.waits += waited or (across and results == {"cpu"})
        aliases = [argument.alias_info for argument in func._schema.arguments]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        self.launches += func.namespace == "aten" and not self.capturing and not view


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _places(tensors: Sequence[Tensor]) -> set[str]:
    return {tensor.device.type for tensor in tensors}


@contextlib.contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Let the run's device be the pretended one, with pretended CUDA graphs; watch what happens."""
    watch = Watch()
    forget()
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "_apply", _moved)
        patch.setattr("fedapp.training.batched.compiled_step.cuda_graph", _graph_of(watch))
        patch.setattr("fedapp.training.networks._effects_of_forward", lambda *_: (set(), False))
        patch.setattr("fedapp.training.networks._mixes_examples", lambda *_: False)
        patch.setattr("fedapp.training.build.choose_device", lambda config: GPU)
        patch.setattr("fedapp.training.build.choose_program", lambda config, device: "capture")
        with FakeTensorMode(allow_non_fake_inputs=True), watch:
            yield watch
    forget()


def forget() -> None:
    """Forget what is kept for the device: tensors of one pretended GPU are not another's."""
    _batched.cache_clear()
    on_device.cache_clear()


def _graph_of(watch: Watch) -> Callable[..., tuple[Callable[[], None], list[Tensor]]]:
    """Return what stands in for ``cuda_graph``."""

    def cuda_graph(
        graph: torch.fx.GraphModule, static: list[Tensor], pool: GraphPool
    ) -> tuple[Callable[[], None], list[Tensor]]:
        watch.capturing = True
        returned = list(graph(*static))
        watch.capturing = False
        places = {tensor.untyped_storage()._cdata for tensor in static}
        if places & {tensor.untyped_storage()._cdata for tensor in returned}:
            watch.problems["a graph returns the memory of an input"] += 1
        return lambda: None, returned

    return cuda_graph


def _moved(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Apply ``fn`` to parameters and buffers; PyTorch's own way swaps them, which fake ones refuse."""
    for child in module.children():
        child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = nn.Parameter(fn(parameter.detach()))
    module._buffers.update({name: b if b is None else fn(b) for name, b in module._buffers.items()})
    return module
