"""Detects the training steps of a script by PyTorch's global hooks, and what trains in them: optimizers, model, batch size.

A step ends when the optimizer that was called first returns from ``step()``, or, where each call steps some of its groups of
parameters, from the last of these calls. What the script does next (printing the loss,
``zero_grad``, the next batch) belongs to the next step. Several backward passes before one call of the optimizer are one step.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

from triosim.tracer.patches import Patch, Patches
from triosim.tracer.pytorch_version import required

if TYPE_CHECKING:
    import torch

#: Groups of parameters, by the ids of these.
_Groups = set[tuple[int, ...]]
_DEEPEST = 4  #: Objects in objects that are searched for a batch.
#: The function of ``torch/distributed/checkpoint/state_dict.py`` that calls an optimizer to allocate what it is to load.
_INITIALISES = "_init_optim_state"


class Observer(Protocol):
    """An object that learns when a step begins and ends. Steps count from 0, skipped ones not included."""

    def step_begins(self, number: int, observed: StepObservations) -> None:
        """Step ``number`` begins; it may never end."""
        ...

    def step_ends(self, number: int, observed: StepObservations) -> None:
        """Step ``number`` ended: the optimizer has returned, and nothing of the next step has run."""
        ...


@dataclass(slots=True)
class _Calls:
    """The calls of an outermost module in the running step: the first dimensions of its first tensor arguments, summed.

    ``trained`` are those of calls whose gradients may be asked for.
    """

    module: weakref.ref[torch.nn.Module]
    name: str
    parameters: int
    samples: int = 0
    trained: int = 0


class StepObservations:
    """The observed ``optimizers``, in the order in which they were first called, the ``model`` and the ``batch_size``.

    The model is the module with the most parameters among those that the script itself called in the last step that called any
    (a loss is a module too); ``model_name`` is its class. The batch size is the sum of the first dimensions of its first tensor
    argument over the calls in that step, those without gradients left out where others are (an evaluation, a pipeline that
    finds its shapes); None where no call had a tensor. A model and a batch size that the caller gives are
    kept. ``joined`` says that in the last step a further optimizer was called for the first time. What the script deletes is
    not kept alive: the model is None from then on, and the optimizer no longer among the others.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._given = model, optimizer  # kept alive
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = (
            [] if optimizer is None else [weakref.ref(optimizer)]
        )
        self._calls: dict[int, _Calls] = {}  # by the id of an outermost module, in the running step
        self._model = None if model is None else weakref.ref(model)
        self.model_name = None if model is None else class_name(unwrapped(model))
        self.batch_size, self._given_batch_size = batch_size, batch_size
        self.joined = False
        self._joining = False  # in the running step

    @property
    def model(self) -> torch.nn.Module | None:
        """The model, None where there is none, or none any more."""
        return None if self._model is None else self._model()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that still exist."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that an optimizer returned from ``step()``, and return whether it is the first one."""
        known = self.optimizers
        if not any(optimizer is other for other in known):
            self._joining = self._joining or bool(known)
            self._optimizers.append(weakref.ref(optimizer))
        return not known or optimizer is known[0]

    def called(self, module: torch.nn.Module, arguments: Any, *, trains: bool = True) -> None:
        """Note that an outermost module was called with these arguments; ``trains`` says that it may have gradients."""
        calls = self._calls.get(id(module))
        if calls is None or calls.module() is not module:  # the id may have been that of a module that is gone
            parameters = sum(one.numel() for one in module.parameters())
            calls = self._calls[id(module)] = _Calls(weakref.ref(module), class_name(unwrapped(module)), parameters)
        samples = _samples(arguments)
        calls.samples += samples
        calls.trained += samples if trains else 0

    def step_over(self) -> None:
        """Work out model and batch size from the calls of the step."""
        self.joined, self._joining = self._joining, False
        if self._calls:
            largest = max(self._calls.values(), key=lambda calls: calls.parameters)
            if self._given[0] is None:
                self._model, self.model_name = largest.module, largest.name
            self.batch_size = self._given_batch_size or largest.trained or largest.samples or None
        self._calls = {}


class GroupsOfParameters:
    """How many groups of parameters optimizers were given, and those that were stepped since their last whole step.

    A step may be several calls of ``step()``, of other groups each: so DeepSpeed's ZeRO-1 and 2 step theirs.
    """

    def __init__(self) -> None:
        self._given: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._stepped: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Groups] = weakref.WeakKeyDictionary()

    def added(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the groups that an optimizer has after one was added."""
        self._given[optimizer] = len(optimizer.param_groups)

    def stepped(self, optimizer: torch.optim.Optimizer) -> bool:
        """Note that the groups that an optimizer has now were stepped, and return whether all were that it was given.

        One that is stepped again before all were shows that there are no others any more.
        """
        before = self._stepped.pop(optimizer, set())
        if len(optimizer.param_groups) >= self._given.get(optimizer, 0):
            return True
        now = {tuple(map(id, group["params"])) for group in optimizer.param_groups}
        if now & before:
            self._given[optimizer], before = len(before), set()
        if len(before | now) >= self._given[optimizer]:
            return True
        self._stepped[optimizer] = before | now
        return False


class StepCounter:
    """Counts steps, and tells an observer of ``steps`` of them after the first ``skip``.

    ``number`` is that of the running step, negative while steps are skipped. Where any are, so is one more in which a further
    optimizer ran for the first time: it allocated its states, as in no later step.
    """

    def __init__(self, observer: Observer, observed: StepObservations, skip: int, steps: int) -> None:
        self.number = -skip
        self.skip, self.steps = skip, steps
        self._observer, self._observed = observer, observed

    def begin(self) -> None:
        """Tell the observer that a step begins, unless it is skipped or comes after the last one."""
        if 0 <= self.number < self.steps:
            self._observer.step_begins(self.number, self._observed)

    def over(self, _: torch.optim.Optimizer) -> None:
        """Tell the observer that a step ended, and that the next one begins."""
        if self.number == 0 and self.skip and self._observed.joined:
            self.number, self.skip = -1, self.skip + 1
        if 0 <= self.number < self.steps:
            self._observer.step_ends(self.number, self._observed)
        self.number += 1
        self.begin()


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside PyTorch's wrappers: data parallelism, a compiled module."""
    while type(model).__name__ in ("DistributedDataParallel", "DataParallel", "OptimizedModule"):
        inner = getattr(model, "_orig_mod", None)
        inner = getattr(model, "module", None) if inner is None else inner  # a compiled module has no truth value
        if inner is None:
            break
        model = inner
    return model


def class_name(module: torch.nn.Module) -> str:
    """Return the class name of a module without FSDP, which wraps it (FSDP1) or derives a class ``FSDP...`` from its class."""
    while type(module).__name__ == "FullyShardedDataParallel":
        module = module.module  # type: ignore[assignment]
    name = type(module).__name__
    derived = any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
    return name.removeprefix("FSDP") if derived else name


@contextmanager
def optimizer_steps(over: Callable[[torch.optim.Optimizer], None], observed: StepObservations) -> Iterator[None]:
    """Call ``over(optimizer)`` each time that the optimizer which was called first returns from ``step()``.

    An optimizer that another one calls in its own step (inside a ZeRO wrapper), or that is called inside the backward pass,
    does not count, nor does the call by which a distributed checkpoint lets an optimizer allocate its states.
    """
    import torch

    running: list[torch.optim.Optimizer] = []
    groups = GroupsOfParameters()

    def begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        running.append(optimizer)

    def ends(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        while running and running.pop() is not optimizer:
            pass  # one whose step raised, and was caught
        if running or torch._C._current_graph_task_id() != -1:  # inside of another one, or of the backward pass
            return
        if _allocates_states():
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():  # it runs when the graph is replayed
            return
        if not groups.stepped(optimizer):
            return
        if observed.stepped(optimizer):
            observed.step_over()
            over(optimizer)

    add = torch.optim.Optimizer.add_param_group

    @wraps(add)
    def add_param_group(self: torch.optim.Optimizer, *args: Any, **options: Any) -> None:
        add(self, *args, **options)  # type: ignore[no-untyped-call]
        groups.added(self)

    with Patches() as patches, optimizer_hooks(begins, ends):
        patches.make([Patch(torch.optim.Optimizer, "add_param_group", add_param_group)])
        yield


@contextmanager
def module_calls(observed: StepObservations) -> Iterator[None]:
    """Tell ``observed`` of each call of an outermost module. It costs each call of any module a little."""
    from torch import is_grad_enabled
    from torch._C import _current_graph_task_id as current_graph_task_id

    depth = 0

    def enters(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def leaves(called: torch.nn.Module, arguments: Any, keywords: Any, *_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0 and current_graph_task_id() == -1:  # else computed again in the backward pass
            observed.called(called, (arguments, keywords), trains=is_grad_enabled())

    with module_hooks(enters, leaves):
        yield


def module_hooks(enters: Callable[..., None], leaves: Callable[..., None]) -> ExitStack:
    """Call ``enters(module, arguments)`` and ``leaves(module, arguments, keywords, output)`` around each forward pass.

    Until the returned context is left. After an exception PyTorch leaves ``keywords`` out. Raises ``CaptureError`` when this
    version of PyTorch lacks such hooks.
    """
    from torch.nn.modules import module

    before = required(module, "register_module_forward_pre_hook")
    after = required(module, "register_module_forward_hook")
    return _removed_on_leaving(before(enters), after(leaves, with_kwargs=True, always_call=True))


def optimizer_hooks(begins: Callable[..., None], ends: Callable[..., None]) -> ExitStack:
    """Call ``begins(optimizer, ...)`` and ``ends(optimizer, ...)`` around each ``step()`` of any optimizer.

    Until the returned context is left. Raises as ``module_hooks`` does.
    """
    from torch.optim import optimizer

    before = required(optimizer, "register_optimizer_step_pre_hook")
    after = required(optimizer, "register_optimizer_step_post_hook")
    return _removed_on_leaving(before(begins), after(ends))


def _allocates_states() -> bool:
    """Whether ``torch.distributed.checkpoint`` calls an optimizer, with a learning rate of 0, to have its states."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name != _INITIALISES:
        frame = frame.f_back
    return frame.f_code.co_name == _INITIALISES


def _removed_on_leaving(*handles: Any) -> ExitStack:
    stack = ExitStack()
    for handle in handles:
        stack.callback(handle.remove)
    return stack


def _samples(arguments: Any) -> int:
    """Return the first dimension of the first tensor in a call's arguments, also inside of objects, 0 where there is none."""
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(arguments)
    return next(_first_dimensions(leaves, 0), 0) or next(_first_dimensions(leaves, _DEEPEST), 0)


def _first_dimensions(values: Iterable[Any], depth: int) -> Iterator[int]:
    """Yield the first dimensions of tensors among values, and of those inside of them: a batch may be an object."""
    from torch import Tensor
    from torch.nn import Module

    for value in values:
        if isinstance(value, Tensor):
            if value.dim() > 0:
                yield int(value.shape[0])
        elif depth and not isinstance(value, (str, type, Module)):
            inside = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
            yield from _first_dimensions(list(inside.values()), depth - 1)
