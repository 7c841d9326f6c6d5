"""Contents of small tensors on the fake device, kept as long as they follow from what the script gave.

A storage of which everything is known has a real one on the host beside it. An operator whose arguments are all known also runs
on these, with the same views and changes in place; one that reads anything unknown makes unknown what it writes. Fractions that
are drawn at random, and products and convolutions of fractions, stay unknown, so that what a network computes is unknown
whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

#: Tensors of more elements have no known contents.
MOST_ELEMENTS = 2**16
_CONTENTS = "_triosim_contents"
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
_SEEDED = torch.Tag.nondeterministic_seeded
#: Products and convolutions: of fractions they are not computed.
_PRODUCTS = frozenset(
    ("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm", "addbmm", "addr", "_convolution", "convolution")
)
#: Operators that use no more than the shape of their first argument, or overwrite it.
_SHAPE_ONLY = frozenset(
    f"{kind}_like" for kind in ("zeros", "ones", "full", "empty", "rand", "randn", "randint")
) | frozenset(f"new_{kind}" for kind in ("zeros", "ones", "full", "empty", "empty_strided"))
_OVERWRITES = frozenset(("fill", "zero", "copy", "random"))
#: Operators that leave memory as it is, which nothing has written to.
_UNWRITTEN = frozenset(("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"))


def flat(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument or a result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from flat(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from flat(one)


def of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a real tensor on the host with a tensor's contents, in the same memory for all its views; None if unknown.

    A real tensor on the host is itself.
    """
    if not hasattr(tensor, "fake_device"):
        return tensor if tensor.device.type == "cpu" else None
    storage = getattr(tensor.untyped_storage(), _CONTENTS, None)
    if storage is None:
        return None
    with torch._C._DisableTorchDispatch():
        return torch.empty((0,), dtype=tensor.dtype).set_(
            storage, tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def is_known(tensor: torch.Tensor) -> bool:
    """Whether all of a tensor's contents are known."""
    if not hasattr(tensor, "fake_device"):
        return tensor.device.type == "cpu"
    return hasattr(tensor.untyped_storage(), _CONTENTS)


def set_contents(tensor: torch.Tensor, contents: torch.Tensor | None = None) -> None:
    """Give a fake tensor, which fills its storage, the contents of a real one, which is small enough, or zeros."""
    with torch._C._DisableTorchDispatch():
        storage = tensor.untyped_storage()
        real = torch.zeros((storage.nbytes(),), dtype=torch.uint8)
        setattr(storage, _CONTENTS, real.untyped_storage())
        if contents is not None:
            of(tensor).copy_(contents)  # type: ignore[union-attr]


def write(tensor: torch.Tensor, contents: torch.Tensor | None) -> None:
    """Write contents into a tensor, real or fake, or forget what it holds; contents of another shape are taken in order."""
    if contents is None:
        forget(tensor)
        return
    with torch._C._DisableTorchDispatch():
        contents = contents.reshape(tensor.size())
        known = of(tensor)
        if known is not None:
            known.copy_(contents)
        elif _fills_storage(tensor) and tensor.numel() <= MOST_ELEMENTS:
            set_contents(tensor, contents)


def _set_all(fakes: Sequence[torch.Tensor], real: Sequence[torch.Tensor | None]) -> None:
    """Set the contents of each fake tensor that fills its storage."""
    for fake, contents in zip(fakes, real, strict=False):
        if _fills_storage(fake) and (contents is None or contents.shape == fake.shape):
            set_contents(fake, contents)


def forget(tensor: torch.Tensor) -> None:
    """Make the contents of a tensor's storage unknown."""
    if hasattr(tensor, "fake_device"):
        storage = tensor.untyped_storage()
        if hasattr(storage, _CONTENTS):
            delattr(storage, _CONTENTS)


def _fills_storage(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


class KnownContents:
    """The rules by which operators on a fake device keep contents known."""

    def __init__(self) -> None:
        self._unable: set[Any] = set()  # operators that have no kernel on the host
        self._random = torch.Generator().get_state()  # the device's, apart from the host's

    def seed(self, seed: int) -> None:
        """Seed the device's random numbers."""
        with torch._C._DisableTorchDispatch():
            self._random = torch.Generator().manual_seed(seed).get_state()

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what an operator on known tensors returns, as real tensors; ``NotImplemented`` if it is not known."""
        if function in self._unable:
            return NotImplemented
        with torch._C._DisableTorchDispatch():
            if _SEEDED not in function.tags:
                return self._run(function, args, kwargs)
            generator = torch.default_generator
            before = generator.get_state()
            generator.set_state(self._random)
            try:
                result = self._run(function, args, kwargs)
            finally:
                self._random = generator.get_state()
                generator.set_state(before)
        whole = all(one.dtype in _WHOLE for one in flat(result))
        return result if whole else NotImplemented

    def _run(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        named = {name: _one(value) for name, value in kwargs.items() if name != "pin_memory"}
        try:
            return function(*_on_the_host(args), **named)
        except NotImplementedError:
            self._unable.add(function)
        except (RuntimeError, IndexError, ValueError):  # the script's own error, which the GPU finds too late
            pass
        return NotImplemented

    def follow(self, info: Any, given: Sequence[torch.Tensor], args: Any, kwargs: Any, result: Any) -> None:
        """Keep known, or make unknown, what an operator has returned and changed."""
        name = info.bare
        changed = list(info.changed_of(args, kwargs)) if info.changed else []
        old = {one.untyped_storage()._cdata for one in given} if info.function.is_view or changed else set()
        fakes = [one for one in flat(result) if hasattr(one, "fake_device")]
        made = [one for one in fakes if one.untyped_storage()._cdata not in old]  # others are views of what was given
        if not (made or changed):
            return
        if not self._follows(name, given, made, changed):
            for one in changed:
                forget(one)
            return
        if name in _UNWRITTEN:
            _set_all(made, [None] * len(made))
            return
        if name in _SHAPE_ONLY:
            args = (_unwritten(args[0]), *args[1:])
        elif changed and not is_known(changed[0]):
            set_contents(changed[0])  # to be overwritten
        found = self.computed(info.function, args, kwargs)
        if found is NotImplemented:
            for one in changed:
                forget(one)
        elif made:
            positions = [at for at, one in enumerate(fakes) if any(one is other for other in made)]
            real = list(flat(found))
            _set_all(made, [real[at] for at in positions] if len(real) == len(fakes) else [])

    def _follows(
        self, name: str, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]
    ) -> bool:
        """Whether an operator's results follow from what is known, and are small enough."""
        overwritten = bool(changed) and name in _OVERWRITES and _fills_storage(given[0])
        needed = given[1:] if overwritten or name in _SHAPE_ONLY else given
        if not all(is_known(one) and one.numel() <= MOST_ELEMENTS for one in needed):
            return False
        if any(one.numel() > MOST_ELEMENTS for one in (*made, *changed)):
            return False
        fractions = any(one.is_floating_point() for one in given)
        return not (fractions and name in _PRODUCTS)


def _unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """Return a real tensor of a fake one's shape, for operators that read no more."""
    with torch._C._DisableTorchDispatch():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)


def _on_the_host(values: Iterable[Any]) -> list[Any]:
    return [_one(value) for value in values]


def _one(value: Any) -> Any:
    """Return an argument as it is on the host: a tensor's contents, and the host instead of the device."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return of(value)
    if kind is torch.device:
        return torch.device("cpu") if value.type == "cuda" else value
    if kind is list or kind is tuple:
        return kind(_on_the_host(value))
    return value
