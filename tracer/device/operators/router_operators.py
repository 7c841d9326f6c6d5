"""Routers of experts, whose choice is drawn where ``--routing`` says how.

A router is a module whose class or name says so, and what it returns are the largest of scores along their last dimension, one
for each expert: ``topk``, ``argmax`` or ``max``. Their indices are known from then on, and so are the counts and sizes that
the script takes from them.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from triosim.extrapolators.expert.expert_loads import LoadDistribution
from triosim.tracer.contents import storage_contents
from triosim.tracer.contents.drawn_experts import DrawnExperts, Routed, Taken
from triosim.tracer.device.dispatch_mode import DeviceMode
from triosim.tracer.patches import Patches
from triosim.tracer.recorder.device_tensors import on_device
from triosim.tracer.steps import class_name, module_hooks, optimizer_hooks

aten = torch.ops.aten
#: Classes of routers, and of mixture layers that choose experts by themselves; wrappers put other words before them.
_CLASSES = re.compile(r"(router|gate|gating|moe|moe_?(block|layer|mlp|ffn)|mixtureofexperts)$", re.IGNORECASE)
_NAMES = frozenset(("router", "gate"))


def install(patches: Patches, mode: DeviceMode, load: LoadDistribution, rank: int) -> RouterOperators:
    """Draw what routers choose, until the patches are undone."""
    operators = RouterOperators(mode, load, rank)
    patches.enter_context(module_hooks(operators.enters, operators.leaves))
    patches.enter_context(optimizer_hooks(lambda *_: None, lambda *_: operators.drawn.step_ends()))
    mode.contents.are_drawn = True
    mode.add_shape_rules(
        {aten.topk.default: operators.topk, aten.argmax.default: operators.argmax, aten.max.dim: operators.largest}
    )
    return operators


class RouterOperators:
    """The rules of operators by which routers choose experts; ``drawn`` is what they chose."""

    def __init__(self, mode: DeviceMode, load: LoadDistribution, rank: int) -> None:
        self.drawn = DrawnExperts(load)
        self._modules = mode.recorder.modules
        self._rank = rank
        self._active: list[nn.Module] = []

    def enters(self, module: nn.Module, *_: Any) -> None:
        """A module is called."""
        self._active.append(module)

    def leaves(self, *_: Any) -> None:
        """The call of a module is over."""
        self._active.pop()

    def topk(self, scores: torch.Tensor, k: int, dim: int = -1, *_: Any, **__: Any) -> Any:
        """The values, which are unknown, and the indices of the largest scores."""
        return self._chosen(scores, k, dim, (k,))

    def largest(self, scores: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
        """The same of the largest alone."""
        return self._chosen(scores, 1, dim, (1,) if keepdim else ())

    def argmax(self, scores: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        """The index of the largest score."""
        found = NotImplemented if dim is None else self.largest(scores, dim, keepdim)
        return found if found is NotImplemented else found[1]

    def _chosen(self, scores: torch.Tensor, count: int, dim: int, last: tuple[int, ...]) -> Any:
        router = self._router()
        if router is None or not _are_scores(scores, dim) or not 0 < count <= scores.shape[-1]:
            return NotImplemented
        tokens = scores.shape[:-1]
        asked = Routed(self._modules.path(router), math.prod(tokens), scores.shape[-1], count)
        again = torch._C._current_graph_task_id() != -1  # activations that were not kept are computed again
        without = _without(scores)
        with torch._C._DisableTorchDispatch():
            rank = _drawing_rank(router, self._rank)
            drawn = self.drawn.draw(asked, rank, trains=router.training, again=again, without=without)
            experts = torch.from_numpy(drawn)
        indices = scores.new_empty((*tokens, *last), dtype=torch.int64)
        storage_contents.write(indices, experts, most=storage_contents.MOST_DRAWN)
        return scores.new_empty((*tokens, *last)), indices

    def _router(self) -> nn.Module | None:
        """Return the module that is being called, if it is a router."""
        module = self._active[-1] if self._active else None
        if module is None:
            return None
        name = self._modules.path(module).rpartition(".")[2]
        return module if name in _NAMES or _CLASSES.search(class_name(module)) else None


def _are_scores(tensor: torch.Tensor, dim: int) -> bool:
    """Whether a tensor may hold a score for each token and expert, which nobody knows."""
    last = dim in (-1, tensor.dim() - 1)
    return last and tensor.dim() > 1 and tensor.is_floating_point() and on_device(tensor) and tensor.numel() > 0


def _without(scores: torch.Tensor) -> Taken | None:
    """Return which experts tokens cannot have, as their scores are less than all numbers: those that they have already."""
    part = storage_contents.known_part(scores)
    if part is None or part[1] is None:
        return None
    with torch._C._DisableTorchDispatch():
        found: Taken = (part[1] & part[0].eq(-math.inf)).flatten(0, -2).numpy()
        return found


def _drawing_rank(router: nn.Module, rank: int) -> int:
    """Return the rank whose draws a router's are: the first of those that have the same tokens.

    These are the ranks over which its parameters are replicated as distributed tensors: its input then is too.
    """
    for one in router.parameters():
        if isinstance(one, DTensor) and any(placement.is_replicate() for placement in one.placements):
            coordinate = one.device_mesh.get_coordinate() or []
            places = [0 if by.is_replicate() else at for at, by in zip(coordinate, one.placements, strict=True)]
            return int(one.device_mesh.mesh[tuple(places)]) if places else rank
    return rank
