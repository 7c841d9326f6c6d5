"""Saves and loads files of safetensors by shape: ``torch.save`` writes them, and tensors stay on the host until asked for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from triosim.tracer.patches import Patch
from triosim.tracer.surroundings.file_overlay import FileOverlay
from triosim.tracer.surroundings.saved_tensors import placed

#: The first bytes of what ``torch.save`` writes.
_ZIP = b"PK"


def after_import(files: FileOverlay | None) -> Callable[[ModuleType], list[Patch]]:
    """Return a function that makes the patches of ``safetensors``: whatever loads a file calls ``safe_open``."""

    def patches(package: ModuleType) -> list[Patch]:
        module: Any = importlib.import_module("safetensors.torch")
        opened, dtypes = module.safe_open, {dtype: name for name, dtype in module._TYPES.items()}

        def save_file(tensors: dict[str, torch.Tensor], filename: Any, metadata: Any = None) -> None:
            torch.save((tensors, metadata), filename)

        def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
            if (saved := _saved(filename)) is not None:
                return _OpenFile(*saved, torch.device(device), dtypes)
            place = filename if files is None else os.fspath(files.to_read(filename))
            if framework not in ("pt", "torch", "pytorch"):
                return opened(place, framework, device=device, **options)
            with opened(place, framework, **options) as file, _disable_current_modes():
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (mapped, and not read)
                metadata = file.metadata()
            on_host = {name: placed(one, torch.device("cpu")) for name, one in found.items()}
            return _OpenFile(on_host, metadata, torch.device(device), dtypes)

        return [
            Patch(module, "save_file", save_file),
            *(Patch(owner, "safe_open", safe_open) for owner in (package, module)),
        ]

    return patches


def _saved(filename: Any) -> tuple[dict[str, torch.Tensor], Any] | None:
    """Return the tensors and metadata of a file that a script without a GPU has written."""
    with open(filename, "rb") as file:
        if file.read(len(_ZIP)) != _ZIP:
            return None
        file.seek(0)
        tensors, metadata = torch.load(file, map_location="cpu")
        return tensors, metadata


class _OpenFile:
    """An open file, as ``safetensors.safe_open`` returns it."""

    def __init__(
        self, tensors: dict[str, torch.Tensor], metadata: Any, device: torch.device, dtypes: dict[torch.dtype, str]
    ) -> None:
        self._tensors, self._metadata, self._device, self._dtypes = tensors, metadata, device, dtypes

    def __enter__(self) -> _OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        """Return the names of the tensors."""
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        """Return the names in the order of the file."""
        return list(self._tensors)

    def metadata(self) -> Any:
        """Return the texts that were saved with the tensors."""
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor."""
        return self._tensors[name].to(self._device)

    def get_tensors(self, names: list[str] | None = None) -> dict[str, torch.Tensor]:
        """Return tensors by name."""
        return {name: self.get_tensor(name) for name in names or self._tensors}

    def get_slice(self, name: str) -> _Slice:
        """Return a tensor of which a part may be asked for."""
        tensor = self._tensors[name]
        return _Slice(tensor, self._device, self._dtypes[tensor.dtype])


class _Slice:
    """A tensor of a file, whose parts are tensors."""

    def __init__(self, tensor: torch.Tensor, device: torch.device, dtype: str) -> None:
        self._tensor, self._device, self._dtype = tensor, device, dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensor[index].to(self._device)

    def get_shape(self) -> list[int]:
        """Return the shape of the whole."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return the name of the dtype in files of safetensors."""
        return self._dtype
