"""Parts of a training step that are compiled, and those that are faster than torch's on a CPU.

BatchNorm, the sum with a shortcut and ReLU are one operation. Each of torch's operators reads and
writes its whole input. Here the forward and the backward pass read it twice and write once, and
keep no tensor that the convolutions do not keep anyway. The fused optimizer copies no kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.optim import Adam, AdamW, Optimizer

_SMALLEST = 1 << 20
"""Values of the smallest input that is computed as one operation: calls cost more below."""


class Compiled:
    """A callable that is compiled for each new input shape, or runs as it is if that fails.

    There is one kernel per shape, or if ``dynamic`` one for all from the start: otherwise the exact
    result of a step would depend on the shapes of earlier steps, and a resumed run could differ.
    """

    def __init__(
        self,
        plain: Callable[..., Any],
        what: str,
        *,
        dynamic: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        self._plain, self._what = plain, what
        self._fast = torch.compile(plain, dynamic=dynamic, options=options)

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - what the plain callable returns
        """Return the result of the plain callable, up to rounding."""
        # Imported here: the compiler takes seconds to import, and not every run uses it.
        from torch._dynamo.exc import TorchDynamoException

        try:
            return self._fast(*args)
        except TorchDynamoException as error:
            self._fast = self._plain
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"{self._what} could not be compiled and runs slower, uncompiled: {reason}",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._plain(*args)


def norm_relu(norm: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """Return relu(norm(x) + shortcut), (n, channel, y, x)."""
    if isinstance(norm, OnePassNorm) and norm.training and x.numel() >= _SMALLEST:
        return norm.relu(x, shortcut)
    x = norm(x)
    if shortcut is not None:
        x = x.add_(shortcut)
    return functional.relu(x, inplace=True)


class OnePassNorm(nn.BatchNorm2d):
    """BatchNorm that can be computed together with what follows it."""

    def relu(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        """Return relu(self(x) + shortcut) in training mode."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        given = x, self.weight, self.bias, shortcut, self.running_mean, self.eps
        found: tuple[Tensor, ...] = _NormReLU.apply(*given)  # type: ignore[no-untyped-call]  # torch's
        y, mean, variance = found
        with torch.no_grad():
            count = x.numel() // x.shape[1]
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        return y


def fuse_norms(model: nn.Module) -> None:
    """Let `norm_relu` compute every BatchNorm of a model that calls it as one operation.

    On CUDA that gains a twentieth of a step, and compiling takes 15 s: ``compile`` model does more.
    """
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = OnePassNorm


class _ContiguousViews(Adam):
    """Adam whose fused kernel gets contiguous views of what is in channels last.

    The kernel for CPUs copies other tensors, which is a third of its time.
    """

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        found: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]  # torch's
        alike = lists[:4]  # parameters, gradients and the averages of both
        for number, tensors in enumerate(zip(*alike, strict=True)):
            if all(value.is_contiguous(memory_format=torch.channels_last) for value in tensors):
                for values, value in zip(alike, tensors, strict=True):
                    values[number] = value.permute(0, 2, 3, 1)
        return found


def copy_no_kernels(optimizer: Optimizer) -> None:
    """Let Adam and AdamW change kernels in channels last where they are."""
    kind = type(optimizer)
    if kind in (Adam, AdamW):
        optimizer.__class__ = type(kind.__name__, (_ContiguousViews, kind), {})


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor, shortcut: Tensor | None, shift: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y (row, column, channel), and mean, variance, 1 / deviation per channel of x."""
    # Values near 0, whose squares lose no digits: `shift` is about the mean.
    centred = x.float() - shift
    count = len(x) * x.shape[1]
    offset = _sum(centred) / count
    variance = (_sum(centred.square()) / count - offset.square()).clamp_min(0)
    mean, inverse = offset + shift, (variance + eps).rsqrt()
    gain = weight * inverse
    y = x.float() * gain + (bias - mean * gain)
    if shortcut is not None:
        y = y + shortcut.float()
    return y.clamp_min(0).to(x.dtype), mean, variance, inverse


def _backward(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of x, weight, bias and, if ``y`` is given, the shortcut.

    Without a shortcut x says where y is positive: the two passes need not read y.
    """
    normal = (x.float() - mean) * inverse
    passed = torch.where(normal * weight + bias > 0 if y is None else y > 0, grad, 0)
    g = passed.float()
    of_weight, of_bias = _sum(g * normal), _sum(g)
    of_x = weight * inverse * (g - (of_bias + normal * of_weight) / (len(x) * x.shape[1]))
    return of_x.to(x.dtype), of_weight, of_bias, None if y is None else passed


def _sum(values: Tensor) -> Tensor:
    """Return the sum per channel, of rows first: one fp32 sum of millions would lose digits."""
    return values.sum(1).sum(0)


@cache
def _compiled() -> tuple[Compiled, Compiled]:
    # Inductor would store the masked gradient in fp32, which the second pass reads: twice the time.
    options = {"realize_reads_threshold": 100, "realize_opcount_threshold": 100}
    forward, backward = (
        Compiled(function, "BatchNorm", dynamic=True, options=options)
        for function in (_forward, _backward)
    )
    return forward, backward


class _NormReLU(torch.autograd.Function):
    """relu(norm(x) + shortcut); see Ioffe and Szegedy 2015, section 3, for the gradients."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch's context takes any attributes
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        shift: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        added = None if shortcut is None else _rows(shortcut.detach())
        rows = _rows(x.detach()), weight.detach(), bias.detach(), added
        y, mean, variance, inverse = _compiled()[0](*rows, shift, eps)
        y = _maps(y, x)
        ctx.save_for_backward(x, None if shortcut is None else y, weight, bias, mean, inverse)
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, y, weight, bias, mean, inverse = ctx.saved_tensors
        rows = _rows(grad), _rows(x), None if y is None else _rows(y)
        given = weight.detach(), bias.detach(), mean, inverse
        of_x, of_weight, of_bias, passed = _compiled()[1](*rows, *given)
        of_shortcut = None if passed is None else _maps(passed, x)
        return _maps(of_x, x), of_weight, of_bias, of_shortcut, None, None


def _rows(x: Tensor) -> Tensor:
    """Return (n, channel, y, x) as (n * y, x, channel), without a copy if channels are last."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[3], x.shape[1])


def _maps(rows: Tensor, like: Tensor) -> Tensor:
    n, channels, y, x = like.shape
    return rows.view(n, y, x, channels).permute(0, 3, 1, 2)
