"""Sees every operator that a forward pass over meta tensors would dispatch on a device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

META = torch.device("meta")
ATTENTION = "aten::scaled_dot_product_attention"  # chooses among fused kernels by device; kept whole


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor operand without its values."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.size)}"


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatched operator; tensors among its arguments are Shapes."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def shapes(self) -> list[Shape]:
        return [leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if isinstance(leaf, Shape)]


@dataclass(slots=True)
class Seen:
    """Of one operator: calls by layer kind, and the call with the most values among its operands."""

    calls: dict[str, int] = field(default_factory=dict)
    largest: Call | None = None
    numbers: int = -1


class Recorder:
    """Counts by layer kind; what is dispatched outside of layers is of the kind `ends`."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        self._kind = "ends"
        self._of_layer: Counter[str] = Counter()
        self._known: dict[Hashable, Counter[str]] = {}

    @contextmanager
    def layer(self, kind: str, alike: Hashable) -> Iterator[bool]:
        """The calls within are of `kind`. Yields whether a layer `alike` has been recorded: then its counts are added once more."""
        counted = self._known.get(alike)
        if counted is not None:
            for name, count in counted.items():
                calls = self.seen[name].calls
                calls[kind] = calls.get(kind, 0) + count
            yield True
            return
        self._kind, self._of_layer = kind, Counter()
        yield False
        self._known[alike], self._kind = self._of_layer, "ends"

    def take(self) -> dict[str, Seen]:
        """What was seen since the last call; forgets it, and the layers."""
        seen, self.seen = self.seen, {}
        self._known.clear()
        return seen

    def note(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = name_of(op)
        seen = self.seen.setdefault(name, Seen())
        seen.calls[self._kind] = seen.calls.get(self._kind, 0) + 1
        self._of_layer[name] += 1
        numbers = sum(leaf.numel() for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor))
        if numbers > seen.numbers:
            seen.numbers, seen.largest = numbers, Call(op, *tree_map(_shape, (args, kwargs)))


class _Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """Notes calls with meta tensors. What depends on values that meta tensors lack is answered here, in the shape it would have."""

    def __init__(self, recorder: Recorder, key: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder, self.key = recorder, key

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tree_flatten((args, kwargs))[0]):
            return func(*args, **kwargs)  # work of the host: plans, tables
        name = name_of(func)
        if name != ATTENTION and not torch._C._dispatch_has_kernel_for_dispatch_key(name, self.key):
            with self:
                made = func.decompose(*args, **kwargs)  # an operator that only stands for others
            if made is not NotImplemented:
                return made
        self.recorder.note(func, args, kwargs)
        answer = _BY_SHAPE.get(name)
        return answer(*args, **kwargs) if answer is not None else func(*args, **kwargs)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    """The fused kernels lay their answer out by token, then head: what follows need not copy it (torch 2.13, CPU and CUDA)."""
    heads, count = query.shape[-3:-1]
    return query.new_empty((*query.shape[:-3], count, heads, value.shape[-1])).transpose(-3, -2)


def _bincount(values: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    return values.new_empty(minlength, dtype=torch.int64)


def _nonzero(values: Tensor) -> Tensor:
    return values.new_empty((0, values.dim()), dtype=torch.int64)  # the usual path: nothing out of the ordinary was found


def _repeated(repeats: Tensor, output_size: int | None = None) -> Tensor:
    assert output_size is not None
    return repeats.new_empty(output_size)


def _grouped(rows: Tensor, matrices: Tensor, *_: Any, **__: Any) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[-1])


_BY_SHAPE: dict[str, Callable[..., Tensor]] = {
    ATTENTION: _attention,
    "aten::bincount": _bincount,
    "aten::nonzero": _nonzero,
    "aten::_grouped_mm": _grouped,  # its own meta function takes bfloat16 only
    "aten::repeat_interleave.Tensor": _repeated,
}


class _Pretending(TorchFunctionMode):
    """Meta tensors say that they lie on the device, so that the model takes the path it takes there. Rows per expert are read as an
    even share of `rows`, all of them."""

    def __init__(self, device: torch.device, rows: int) -> None:
        super().__init__()
        self.device, self.rows = device, rows

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__ and args[0].is_meta:  # a new wrapper each time it is read
            return self.device
        if func == Tensor.tolist and args[0].is_meta:
            count = args[0].shape[0]
            return [self.rows // count + (i < self.rows % count) for i in range(count)]
        if kwargs.get("device") is not None and torch.device(kwargs["device"]) == self.device:
            kwargs["device"] = META
        if func == Tensor.to:  # from the host to where meta tensors say that they lie
            args = [META if isinstance(value, torch.device) and value == self.device else value for value in args]
        return func(*args, **kwargs)


@contextmanager
def recording(recorder: Recorder, device: torch.device, key: str, rows: int) -> Iterator[None]:
    """`device`, `key`: where the operators would run; `rows`: assignments of a step, tokens x top-k."""
    with _Pretending(device, rows), _Dispatched(recorder, key):
        yield


def name_of(op: Any) -> str:
    """aten::mm, aten::add.Tensor: as the dispatcher has it."""
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _shape(leaf: Any) -> Any:
    return Shape(tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, Tensor) else leaf
