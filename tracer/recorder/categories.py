"""What the storages of a script's tensors are for, as its modules and optimizers say."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils._pytree import tree_leaves

from triosim.trace import Category
from triosim.tracer.recorder.device_tensors import local_tensors, on_device
from triosim.tracer.recorder.storages import StorageTracker


class TensorCategories:
    """Gives ``storages`` their categories."""

    def __init__(self, storages: StorageTracker) -> None:
        self._storages = storages

    def of_new(self, values: Any, category: Category) -> None:
        """Categorise tensors of the device that have no category yet."""
        for value in tree_leaves(values):
            if on_device(value):
                storage = self._storages.of(value)
                if storage.category is None:
                    storage.category = category

    def of_module(self, module: nn.Module) -> None:
        """Categorise the parameters of a module, their gradients, and its buffers."""
        for parameter in module.parameters():
            self._of_parameter(parameter)
        for buffer in nn.Module.buffers(module):  # Megatron's DistributedDataParallel has a list of that name
            for local in local_tensors(buffer):
                self._storages.of(local).category = "buffer"

    def of_parameters(self, optimizer: Any) -> None:
        """Categorise the parameters of an optimizer, and their gradients."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._of_parameter(parameter)

    def of_states(self, optimizer: Any) -> None:
        """Categorise the states of an optimizer; each belongs to a parameter."""
        for parameter, state in optimizer.state.items():
            owner = next((self._storages.of(local) for local in local_tensors(parameter)), None)
            for value in tree_leaves(state):
                for local in local_tensors(value):
                    storage = self._storages.of(local)
                    storage.category, storage.owner = "optimizer_state", owner

    def _of_parameter(self, parameter: Any) -> None:
        for local in local_tensors(parameter):
            storage = self._storages.of(local)
            storage.category = "parameter"
            for gradient in local_tensors(parameter.grad):
                found = self._storages.of(gradient)
                found.category, found.owner = "gradient", storage
