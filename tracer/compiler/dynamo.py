"""Lets ``torch.compile`` work on the fake device, with a code generator of ours in place of TorchInductor's.

PyTorch's own compiler runs up to there: Dynamo, AOTAutograd, the decompositions and the division into forward and backward
pass. Each graph that it would generate code for becomes a ``CompiledGraph``. Compiling takes no simulated time. Code that
cannot be compiled here runs as it is written, with a note.
"""

from __future__ import annotations

import logging
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.utils.flop_counter  # asks for Triton where CUDA is, so before a fake device is there
from torch import fx
from torch._dynamo import convert_frame, eval_frame, trace_rules
from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._functorch import partitioners
from torch._inductor import config as inductor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Distribution
from torch.nn.modules import module as modules
from torch.utils._python_dispatch import _disable_current_modes

import triosim
from triosim.tracer.compiler.compiled_graph import CompiledGraph, ForwardCalls
from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.patches import Patch, Patches
from triosim.tracer.recorder.compiled_code import InlinedModule
from triosim.tracer.recorder.script_lines import OURS

#: Each shape is compiled by itself, so there may be more graphs of a function than in PyTorch.
_GRAPHS = 256
_LONGEST = 150  # letters of an error in a note
_HOOKS = (
    *("_global_forward_pre_hooks", "_global_forward_hooks"),
    *("_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs"),
)
#: What flex attention compiles: it is one operator anyway.
_FLEX_ATTENTION = ("flex_attention", "_flex_attention_hop_wrapper")
#: TorchInductor's settings: passes that compute contents, or need a device, are left out.
_INDUCTOR = {"joint_graph_constant_folding": False, "pattern_matcher": False, "triton.cudagraphs": False}


def prepare(patches: Patches) -> None:
    """Let Dynamo look up the functions that it knows before any of them is replaced, and forget at the end what it compiled."""
    TorchInGraphFunctionVariable._get_handlers()
    trace_rules.get_torch_obj_rule_map()
    _forget_compiled()
    patches.callback(_forget_compiled)
    # Compiling ends the checks of distributions, for the whole process.
    patches.make([Patch(Distribution, "_validate_args", Distribution._validate_args)])


def _forget_compiled() -> None:
    """Forget what was compiled, without a line in the script's log, which may show what PyTorch informs of."""
    log = logging.getLogger(torch._dynamo.__name__)
    before, log.disabled = log.disabled, True
    try:
        torch._dynamo.reset()
    finally:
        log.disabled = before


def install(patches: Patches, mode: DeviceMode, fake_mode: FakeTensorMode) -> None:
    """Let the script compile until the patches are undone."""
    calls = ForwardCalls()
    mode.recorder.call_on_begin(calls.forget)
    patches.make(_patches(mode, fake_mode, calls))
    patches.enter_context(_ours_untraced())
    settings = {"automatic_dynamic_shapes": False, "assume_static_by_default": True, "recompile_limit": _GRAPHS}
    patches.enter_context(torch._dynamo.config.patch(settings))  # type: ignore[attr-defined]
    patches.enter_context(inductor.patch(compile_threads=1))  # type: ignore[attr-defined]  # or it starts processes for them
    patches.enter_context(warnings.catch_warnings())
    warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are global hooks")
    warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")  # it is one operator


def _patches(mode: DeviceMode, fake_mode: FakeTensorMode, calls: ForwardCalls) -> Iterator[Patch]:
    yield Patch(torch, "compile", _compile())
    yield Patch(torch.nn.Module, "compile", _compile_module)
    yield Patch(torch._TorchCompileInductorWrapper, "__call__", _inductor(mode, calls))
    yield Patch(convert_frame.CatchErrorsWrapper, "__call__", _convert(mode))
    yield Patch(OptimizerVariable, "call_method", _initialise_optimizer(mode, fake_mode))
    yield Patch(partitioners, "functionalize_rng_ops", _without_generator_states)
    yield Patch(eval_frame, "set_enable_dynamic", lambda enable: nullcontext())
    yield Patch(
        trace_rules, "clear_lru_cache", lambda: None
    )  # making process groups calls it; some functions are ours then
    # A build without CUDA lacks it; a module of TorchInductor's asks for it when it is imported.
    yield Patch(torch._C, "_cuda_CUDAAllocator_AllocatorState", object, missing="add")
    for name in ("mark_dynamic", "maybe_mark_dynamic", "mark_unbacked"):
        yield Patch(torch._dynamo, name, lambda *_, **__: None, missing="leave")


def _compile() -> Callable[..., Any]:
    """Return ``torch.compile`` for static shapes, which leaves flex attention, and what it cannot compile, as they are."""
    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        if getattr(model, "__name__", "") in _FLEX_ATTENTION:
            return model
        return original(model, **{**options, "dynamic": False, "fullgraph": False})

    return compile


def _compile_module(module: torch.nn.Module, *args: Any, **options: Any) -> None:
    """Compile a module in place; its own hooks run uncompiled."""
    module.forward = torch.compile(module.forward, *args, **options)


def _inductor(mode: DeviceMode, calls: ForwardCalls) -> Callable[..., Any]:
    """Return TorchInductor with our kernels."""

    def compile_graph(self: Any, graph: Any, inputs: Any, *, config_patches: Any = None) -> Any:
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.utils import get_donated_idxs

        inlined = _inlined(graph)
        graphed = bool(self.config.get("triton.cudagraphs"))

        def inner(module: Any, inputs: Any, *, is_backward: bool = False, **_: Any) -> CompiledGraph:
            if is_backward:
                return CompiledGraph(module, mode, calls, "backward", graphed=graphed, donated=get_donated_idxs() or ())
            return CompiledGraph(module, mode, calls, "forward", inlined, graphed=graphed)

        return compile_fx(graph, inputs, inner, {**self.config, **(config_patches or {}), **_INDUCTOR})

    return compile_graph


def _inlined(graph: fx.GraphModule) -> InlinedModule | None:
    """Return the module in a graph of Dynamo's, and the samples in the function's own arguments; None without either."""
    stacks = (node.meta.get("nn_module_stack") for node in graph.graph.nodes)
    kind = next((next(iter(stack.values()))[1] for stack in stacks if stack), None)
    given = (node for node in graph.graph.find_nodes(op="placeholder") if _is_local(str(node.target)))
    sizes = (getattr(node.meta.get("example_value"), "shape", ()) for node in given)
    samples = next((size[0] for size in sizes if size), None)
    if kind is None or not isinstance(samples, int):
        return None
    return InlinedModule(kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__, samples)


def _without_generator_states(_: Any, forward: Any, backward: Any, *__: Any, **___: Any) -> tuple[Any, Any]:
    """Return both halves as they are: random numbers are not drawn, so that recomputation needs no state of a generator."""
    return forward, backward


def _is_local(name: str) -> bool:
    """Whether an input of Dynamo's, by its name, is an argument of the function, and no part of a module."""
    return name.startswith("L_") and not any(part in name for part in ("_modules_", "_parameters_", "_buffers_"))


def _convert(mode: DeviceMode) -> Callable[..., ConvertFrameReturn]:
    """Return the function that compiles a frame of Python: outside of our modes and hooks, and if it cannot, not at all."""
    original = convert_frame.CatchErrorsWrapper.__call__

    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.DEFAULT)

    def convert(self: Any, frame: Any, *args: Any, **options: Any) -> ConvertFrameReturn:
        if sys._getframe(1).f_code.co_filename.startswith(OURS):
            return ConvertFrameReturn(skip, apply_to_code=False)  # what our hooks call
        with _disable_current_modes(), _without_hooks(), mode.recorder.unrecorded():
            try:
                return original(self, frame, *args, **options)
            except Exception as error:
                failed = getattr(error, "inner_exception", error)
        why = textwrap.shorten(str(failed).strip().partition("\n")[0], _LONGEST)
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # from Python 3.11 on
        mode.recorder.note(
            f"{name} cannot be compiled without a GPU ({type(failed).__name__}: {why}): captured as it is written"
        )
        return ConvertFrameReturn(FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP))

    return convert


def _initialise_optimizer(mode: DeviceMode, fake_mode: FakeTensorMode) -> Callable[..., Any]:
    """Return the function by which Dynamo really calls a method of an optimizer that it compiles: it allocates the states."""
    original = OptimizerVariable.call_method

    def call_method(self: Any, translator: Any, name: str, *args: Any, **options: Any) -> Any:
        if name != "_init_group":
            return original(self, translator, name, *args, **options)
        with fake_mode, mode:
            return original(self, translator, name, *args, **options)

    return call_method


@contextmanager
def _without_hooks() -> Iterator[None]:
    """Take the hooks by which we follow modules away while Dynamo reads how a module is called."""
    found = {name: dict(getattr(modules, name)) for name in _HOOKS if hasattr(modules, name)}
    for name in found:
        getattr(modules, name).clear()
    try:
        yield
    finally:
        for name, hooks in found.items():
            getattr(modules, name).update(hooks)


@contextmanager
def _ours_untraced() -> Iterator[None]:
    """Let Dynamo call functions of triosim instead of compiling them."""
    folders = [str(path) + "/" for path in (*triosim.__path__, Path(__file__).resolve().parents[1])]
    before = trace_rules.SKIP_DIRS[:]
    trace_rules.SKIP_DIRS += folders
    trace_rules._recompile_re()
    try:
        yield
    finally:
        trace_rules.SKIP_DIRS[:] = before
        trace_rules._recompile_re()
