"""Calls of the micro-benchmarks' operators in PyTorch, given the tensors of a case."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Tensors = Sequence[Any]
Call = Callable[[], Any]


def call(torch: Any, benchmark: str, tensors: Tensors, attributes: Mapping[str, Any]) -> Call:
    """Return a function without arguments that runs an operator on tensors."""
    if benchmark.startswith(("foreach", "fused")):
        return _for_each(torch, benchmark, tensors, int(attributes["lists"]))
    run = _forward(torch)[benchmark]
    return lambda: run(tensors, attributes)


def _forward(torch: Any) -> Mapping[str, Callable[[Tensors, Mapping[str, Any]], Any]]:
    nn = torch.nn.functional
    return {
        "linear": lambda t, a: nn.linear(*t),
        "mm": lambda t, a: torch.mm(*t),
        "bmm": lambda t, a: torch.bmm(*t),
        "conv2d": lambda t, a: nn.conv2d(*t, stride=a["stride"], padding=a["padding"]),
        "sdpa": lambda t, a: nn.scaled_dot_product_attention(*t, is_causal=a["is_causal"]),
        "layer_norm": lambda t, a: nn.layer_norm(t[0], a["normalized_shape"], t[1], t[2]),
        "rms_norm": lambda t, a: nn.rms_norm(t[0], a["normalized_shape"], t[1]),
        "batch_norm": lambda t, a: nn.batch_norm(t[0], t[3], t[4], t[1], t[2], training=True),
        "softmax": lambda t, a: torch.softmax(t[0], a["dim"]),
        "log_softmax": lambda t, a: torch.log_softmax(t[0], a["dim"]),
        "add": lambda t, a: torch.add(*t),
        "mul": lambda t, a: torch.mul(*t),
        "relu": lambda t, a: torch.relu(*t),
        "gelu": lambda t, a: nn.gelu(*t),
        "silu": lambda t, a: nn.silu(*t),
        "clone": lambda t, a: t[0].clone(),
        "max_pool2d": lambda t, a: nn.max_pool2d(t[0], a["kernel_size"], a["stride"]),
        "embedding": lambda t, a: nn.embedding(t[1], t[0]),
        "cross_entropy": lambda t, a: nn.cross_entropy(*t),
    }


def _for_each(torch: Any, benchmark: str, tensors: Tensors, lists: int) -> Call:
    """Return a call on lists of tensors, the changed one first. Its factors keep values finite however often it is run."""
    each = len(tensors) // lists
    own, *others = [list(tensors[number * each : (number + 1) * each]) for number in range(lists)]
    if benchmark.startswith("fused"):
        return _fused(torch, benchmark, own, others)
    calls: Mapping[str, Call] = {
        "foreach_add": lambda: torch._foreach_add_(own, others[0], alpha=1e-9),
        "foreach_mul": lambda: torch._foreach_mul_(own, 1.0),
        "foreach_lerp": lambda: torch._foreach_lerp_(own, others[0], 1e-3),
        "foreach_addcmul": lambda: torch._foreach_addcmul_(own, others[0], others[1], value=1e-9),
        "foreach_addcdiv": lambda: torch._foreach_addcdiv_(own, others[0], others[1], value=1e-9),
        "foreach_sqrt": lambda: torch._foreach_sqrt(own),
        "foreach_div": lambda: torch._foreach_div_(own, others[0]),
    }
    return calls[benchmark]


def _fused(torch: Any, benchmark: str, own: list[Any], others: Sequence[list[Any]]) -> Call:
    if benchmark == "fused_sgd":
        return lambda: torch._fused_sgd_(
            own, others[0], others[1], weight_decay=0.0, momentum=0.9, lr=1e-9, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False,
        )  # fmt: skip
    steps = [torch.tensor(1.0, device=tensor.device) for tensor in own]
    return lambda: torch._fused_adamw_(
        own, others[0], others[1], others[2], [], steps, lr=1e-9, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8,
        amsgrad=False, maximize=False,
    )  # fmt: skip
