"""When a training step ends, and what trained in it: the optimizer that called, the model that ran, the size of its batch.

A step ends when the optimizer that was seen first returns from ``step()``; it is over before what the script does next
(the loss's printing, ``zero_grad``, the next batch), which is the next step's. Several backward passes before one call of
the optimizer are one step. PyTorch's global hooks tell all of it, so a script needs no change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from triosim.errors import CaptureError

if TYPE_CHECKING:
    import torch


class Observer(Protocol):
    """Whoever records a step. Steps count from 0, those that are skipped not among them."""

    def step_begins(self, number: int, seen: Seen) -> None:
        """Step ``number`` begins; a step that never ends is none."""
        ...

    def step_ends(self, number: int, seen: Seen) -> None:
        """Step ``number`` is over: the optimizer has returned, and nothing of the next step has run."""
        ...


class Seen:
    """What the steps so far told: ``optimizers`` in the order in which they were first called, ``model``, ``batch_size``.

    The model is, of the modules that the script itself called in the last step that called one, the one with the most
    parameters (a loss is a module too). The batch size is the first dimension of its first tensor argument, times the calls of
    it in that step; None where no call had a tensor. ``joined``: in the last step an optimizer beside the first one was called
    for the first time.
    """

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self._samples: dict[torch.nn.Module, int] = {}  # by outermost module: of the step that runs
        self.model: torch.nn.Module | None = None
        self.batch_size: int | None = None
        self.joined = False
        self._known = 1  # optimizers, before the step that runs

    def called(self, module: torch.nn.Module, arguments: Any) -> None:
        """An outermost module was called with these arguments."""
        self._samples[module] = self._samples.get(module, 0) + _samples(arguments)

    def step_over(self) -> None:
        """Settle what the calls of the step say."""
        self.joined = len(self.optimizers) > self._known
        self._known = max(len(self.optimizers), 1)
        if self._samples:
            self.model = max(self._samples, key=lambda module: sum(one.numel() for one in module.parameters()))
            self.batch_size = self._samples[self.model] or None
        self._samples = {}


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of what PyTorch wraps around one: data parallelism, a compiled module."""
    while type(model).__name__ in ("DistributedDataParallel", "DataParallel", "OptimizedModule"):
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if inner is None:
            break
        model = inner
    return model


def class_name(module: torch.nn.Module) -> str:
    """Return the class of a module; not what FSDP makes of it, which wraps it, or derives a class ``FSDP...`` from its own."""
    while type(module).__name__ == "FullyShardedDataParallel":
        module = module.module  # type: ignore[assignment]
    name = type(module).__name__
    derived = any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
    return name.removeprefix("FSDP") if derived else name


@contextmanager
def optimizer_steps(over: Callable[[torch.optim.Optimizer], None], seen: Seen) -> Iterator[None]:
    """Call ``over(optimizer)`` each time that the first-seen optimizer returns from ``step()``.

    An optimizer that calls another one inside of its own step (a ZeRO wrapper) is the one that counts, and one that is called
    from inside of the backward pass is none.
    """
    import torch
    from torch.optim import optimizer as module

    running: list[torch.optim.Optimizer] = []

    def begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        running.append(optimizer)

    def ends(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        while running and running.pop() is not optimizer:
            pass  # one whose step raised, and was caught
        if running or torch._C._current_graph_task_id() != -1:  # inside of another one, or of the backward pass
            return
        if not any(optimizer is other for other in seen.optimizers):
            seen.optimizers.append(optimizer)
        if optimizer is seen.optimizers[0]:
            seen.step_over()
            over(optimizer)

    names = ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook")
    handles: list[Any] = []
    try:
        for name, hook in zip(names, (begins, ends), strict=True):
            handles.append(_api(module, name)(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def module_calls(seen: Seen) -> Iterator[None]:
    """Tell ``seen`` of each module that is called from outside of all modules. It costs each call of any module a little."""
    from torch._C import _current_graph_task_id as current_graph_task_id

    depth = 0

    def enters(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def leaves(called: torch.nn.Module, arguments: Any, keywords: Any, *_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0 and current_graph_task_id() == -1:  # else computed again in the backward pass
            seen.called(called, (arguments, keywords))

    with module_hooks(enters, leaves):
        yield


@contextmanager
def module_hooks(enters: Callable[..., None], leaves: Callable[..., None]) -> Iterator[None]:
    """Call ``enters(module, arguments)`` and ``leaves(module, arguments, keywords, output)`` around each forward pass."""
    from torch.nn.modules import module

    before, after = _api(module, "register_module_forward_pre_hook"), _api(module, "register_module_forward_hook")
    handles = [before(enters), after(leaves, with_kwargs=True, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _samples(arguments: Any) -> int:
    """Return the first dimension of the first tensor in a call's arguments, 0 where there is none."""
    from torch import Tensor
    from torch.utils._pytree import tree_leaves

    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    return 0


def _api(module: Any, name: str) -> Any:
    found = getattr(module, name, None)
    if found is None:
        import torch

        raise CaptureError(
            f"PyTorch {torch.__version__} has no {module.__name__}.{name}, which a capture needs",
            fix="use PyTorch 2.6 or newer",
        )
    return found
