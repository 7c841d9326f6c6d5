"""Software stacks: what a framework's training step is made of, where the user says no more than the framework's name.

``triosim/config/stacks.json`` has an entry for each: its kernels, attention, optimizer and products are the defaults of the
options that are called so, and what launching kernels costs the host that of ``host_overhead``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triosim.trace import Trace

AttentionKind = Literal["flash", "cudnn", "triton", "math"]
KernelKind = Literal["eager", "fused", "compiled"]
ProductKind = Literal["plain", "tf32", "fp8", "fp8-current", "fp8-delayed", "fp8-block", "mxfp8", "nvfp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The defaults of a software stack.

    kernels: "eager" is one kernel an ATen operator, "fused" one for what training libraries fuse by hand, "compiled" what a
        compiler makes of the eager ones.
    attention: "flash" is FlashAttention-2, "cudnn" cuDNN's kernel, "triton" the first FlashAttention as written in Triton;
        "math" is two matrix products, with the scores in memory.
    optimizer: a key of ``triosim.models.operators.optimizers.OPTIMIZERS``.
    products: "plain" multiplies in the step's dtype, "tf32" in TF32 what is in fp32. All others multiply linear layers in fewer
        bits, except the one that makes a Llama's logits: "fp8" by torchao, the rest by Transformer Engine, whose recipes
        ``triosim.models.operators.float8`` tells apart.
    tensor_parallelism: whose it is: "dtensor" is PyTorch's, "megatron" Megatron-LM's.
    async_allreduce: whether tensor parallelism reduces the gradient of an input beside the product for the weight's gradient,
        as Megatron-LM does since the end of 2021; DTensor waits for both products.
    gradient_sums: how gradients are added to those of other micro-batches (``triosim.compute.pricing.gradient_accumulation``):
        "kernels" of PyTorch's autograd engine do it, or the products that make them ("fused"); "uncounted" where the stack's
        launches are fitted to steps without such kernels.
    flat_buffers: whether parameters that ``fsdp`` gathers and frees, and gradients that it reduces, lie in buffers of
        collectives and are not copied, as in Megatron-FSDP.
    launch_seconds: what launching an operator's kernel costs the host: Python, dispatch, autograd and the driver.
    call_seconds: the same of a communication.
    run_ahead: how many operators the host is ahead of its GPU at most, and then it waits for communication that its GPU waits
        for; None: as many as CUDA's launch queue holds.
    source: what the host's costs rest on.
    """

    name: str
    meaning: str
    kernels: KernelKind
    attention: AttentionKind
    optimizer: str
    products: ProductKind
    tensor_parallelism: Literal["dtensor", "megatron"]
    launch_seconds: float
    call_seconds: float
    source: str
    gradient_sums: Literal["kernels", "fused", "uncounted"] = "kernels"
    flat_buffers: bool = False
    run_ahead: int | None = None
    async_allreduce: bool = True

    def summary(self) -> str:
        """Return what it is made of in one line, as a described trace keeps it under ``software``."""
        said = f"attention {self.attention}, kernels {self.kernels}, optimizer {self.optimizer}"
        return said + (f", products {self.products}" if self.products != "plain" else "")


def _stacks() -> dict[str, Stack]:
    entries = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {name: Stack(name=name, **entry) for name, entry in entries.items()}


#: The stacks by name.
STACKS: Mapping[str, Stack] = _stacks()


def stack_of(trace: Trace) -> Stack:
    """Return the stack that a trace was described for; a captured one ran as PyTorch does without a compiler."""
    return STACKS.get(trace.software.get("stack", ""), STACKS["eager"])
