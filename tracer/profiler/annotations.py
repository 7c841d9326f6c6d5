"""Annotates a profile with what the profiler does not record: module paths, and the category of tensors.

``layer: encoder.0.attention`` is around a module's forward pass. ``role: gradient 94861233363456 2048 fc.weight`` is around
a ``detach`` of that tensor, by which its ids in the execution trace are found; the figures are its storage's address and
bytes.

No other annotation may be open when a profiler stops: PyTorch's profiler writes the end of a range that began under it into
memory that it has freed (seen with 2.13). A step ends inside of ``optimizer.step()``, which is such a range, and a script may
put its own around that. So all annotations but ours are left out while a profiler runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.profiler import record_function
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from triosim.trace.formats.pytorch.profiled_step import CATEGORY_PREFIX, LAYER_PREFIX
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.steps import class_name, module_hooks, unwrapped

_OURS = "triosim_mark"
#: PyTorch's annotation that ends before a step does; it tells the optimizer's operators from the forward pass's.
_WITHIN_A_STEP = "Optimizer.zero_grad#"


@contextmanager
def only_our_annotations() -> Iterator[None]:
    """Leave out all annotations but ours until the block is left; those that are open already end as usual."""
    original: Callable[[Any], Any] = record_function.__enter__

    def enters(annotation: Any) -> Any:
        if getattr(annotation, _OURS, False) or annotation.name.startswith(_WITHIN_A_STEP):
            return original(annotation)
        annotation.run_callbacks_on_exit = False  # so that leaving it does nothing
        return annotation

    with Patches() as patches:
        patches.make([Patch(record_function, "__enter__", enters)])
        yield


def _annotation(name: str) -> Any:
    annotation = record_function(name)
    setattr(annotation, _OURS, True)
    return annotation


@contextmanager
def annotated_modules() -> Iterator[None]:
    """Annotate each module's forward pass with its path in the outermost module; that one's own path is its class."""
    paths: dict[Any, str] = {}
    open_annotations: list[Any] = []

    def enters(module: torch.nn.Module, *_: Any) -> None:
        if not open_annotations:
            _add_paths(module, paths)
        open_annotations.append(_annotation(LAYER_PREFIX + paths[module]) if module in paths else nullcontext())
        open_annotations[-1].__enter__()

    def leaves(module: torch.nn.Module, arguments: Any, keywords: Any, *_: Any) -> None:
        open_annotations.pop().__exit__(None, None, None)
        if not open_annotations:
            _annotate_inputs((arguments, keywords))

    with module_hooks(enters, leaves):
        yield


@contextmanager
def annotated_optimizers() -> Iterator[list[Any]]:
    """Annotate calls of optimizers as PyTorch does, but so that the annotation can be closed while the optimizer runs."""
    open_annotations: list[Any] = []
    closing: dict[Any, Any] = {}  # by optimizer: the hook that closes its annotation

    def begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A hook of the optimizer: PyTorch is iterating over the global ones when the profiler starts and stops.
        if optimizer not in closing:
            closing[optimizer] = optimizer.register_step_post_hook(ends)
        annotation = _annotation(f"Optimizer.step#{type(optimizer).__name__}.step")
        annotation.__enter__()
        open_annotations.append((optimizer, annotation))

    def ends(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        while any(one is optimizer for one, _ in open_annotations):  # those of steps that raised may be above it
            open_annotations.pop()[1].__exit__(None, None, None)

    handle = register_optimizer_step_pre_hook(begins)
    try:
        yield open_annotations
    finally:
        while open_annotations:
            open_annotations.pop()[1].__exit__(None, None, None)
        for one in (handle, *closing.values()):
            one.remove()


def annotate_tensors(model: torch.nn.Module | None, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Annotate parameters, buffers, gradients and optimizer states as they are now."""
    names: dict[Any, str] = {}  # of parameters
    parameter: Any
    if model is not None:
        inner = unwrapped(model)
        for name, parameter in inner.named_parameters():
            names[parameter] = name
            _annotate(parameter, "parameter", name)
        for name, buffer in inner.named_buffers():
            _annotate(buffer, "buffer", name)
    optimizers = list(optimizers)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in names:
                    names[parameter] = f"parameter_{len(names)}"
                    _annotate(parameter, "parameter", names[parameter])
                if parameter.grad is not None:
                    _annotate(parameter.grad, "gradient", names[parameter])
        for parameter, state in optimizer.state.items():
            for value in state.values() if isinstance(state, dict) else ():
                if parameter in names:
                    _annotate(value, "optimizer_state", names[parameter])


def _add_paths(module: torch.nn.Module, paths: dict[Any, str]) -> None:
    inner = unwrapped(module)
    if inner in paths:
        return
    for path, part in inner.named_modules():
        paths.setdefault(part, path or class_name(inner))


def _annotate_inputs(arguments: Any) -> None:
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor) and not leaf.requires_grad:
            _annotate(leaf, "input", "")


def _annotate(tensor: Any, category: str, name: str) -> None:
    for one in _with_memory(tensor):
        storage = one.untyped_storage()
        said = f"{CATEGORY_PREFIX}{category} {storage.data_ptr()} {storage.nbytes()} {name}"
        with _annotation(said), torch.no_grad():
            one.detach()


def _with_memory(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold a tensor's memory: itself, or those inside it, such as a distributed tensor's local part.

    A tensor on the meta device has no memory.
    """
    if is_traceable_wrapper_subclass(tensor):
        for attribute in tensor.__tensor_flatten__()[0]:
            yield from _with_memory(getattr(tensor, attribute))
    elif isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.device.type != "meta":
        yield tensor
