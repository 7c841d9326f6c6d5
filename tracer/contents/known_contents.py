"""The rules by which contents on the fake device stay known, as long as they follow from what the script gave.

An operator whose arguments are all known also runs on their real contents (``triosim.tracer.contents.storage_contents``), with
the same views and changes in place. Of one that works element by element, or puts tensors together, the elements of the result
are known that come from known ones; any other that reads something unknown makes unknown what it writes. Fractions that are
drawn at random, and products and convolutions of fractions, stay unknown, so that what a network computes is unknown whatever
its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from triosim.tracer.contents import assumed_values, storage_contents
from triosim.tracer.contents.storage_contents import CONTENTS, is_fake, is_known, known_part
from triosim.tracer.device.operators.operator_info import OperatorCall, OperatorInfo, flat

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
#: Operators that put their arguments together, and others that return each element as it is, beside those that PyTorch tags.
_JOINED = frozenset(("cat", "stack"))
_BY_ELEMENT = frozenset(("clone", "_to_copy", "copy", "fill"))


#: Operators whose kernel on the host takes no whole numbers, as the GPU's does.
_ON_THE_HOST: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.histc.default: lambda data, *args, **kwargs: torch.histc(data.double(), *args, **kwargs).to(
        data.dtype
    )
}


class KnownContents:
    """The rules by which operators on a fake device keep contents known."""

    def __init__(self) -> None:
        self.are_drawn = False  # by what ``--routing`` says, so that larger tensors are known
        self._unable: set[Any] = set()  # operators that have no kernel on the host
        self._random = torch.Generator().get_state()  # the device's, apart from the host's

    def seed(self, seed: int) -> None:
        """Seed the device's random numbers."""
        with torch._C._DisableTorchDispatch():
            self._random = torch.Generator().manual_seed(seed).get_state()

    def computed(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what an operator returns, as real tensors; ``NotImplemented`` if it is not known.

        What is unknown in its arguments is zero.
        """
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
            return _ON_THE_HOST.get(function, function)(*_on_the_host(args), **named)
        except NotImplementedError:
            self._unable.add(function)
        except (RuntimeError, IndexError, ValueError):  # the script's own error, which the GPU finds too late
            pass
        return NotImplemented

    def fill(self, given: Sequence[torch.Tensor]) -> None:
        """Write into tensors of one known number what they hold, where they meet drawn routing, before all else."""
        most = storage_contents.most_elements(given)
        if most == storage_contents.MOST_ELEMENTS:
            return
        for one in given:
            if not is_fake(one) or one.numel() > most or not storage_contents.is_whole(one) or is_known(one):
                continue
            if assumed_values.is_known(one):
                with torch._C._DisableTorchDispatch():
                    number = torch.full((), assumed_values.value(one), dtype=one.dtype)
                storage_contents.set_contents(one, number, None, most)

    def may_follow(self, info: OperatorInfo, given: Sequence[torch.Tensor], storages: Iterable[Any]) -> bool:
        """Whether ``follow`` has anything to do for a call on these fake tensors, whose ``storages`` are given."""
        if info.bare in _UNWRITTEN or (info.is_view and not info.changed):
            return False
        unread = info.bare in _SHAPE_ONLY or bool(info.changed and info.bare in _OVERWRITES)
        return len(given) <= unread or any(hasattr(one, CONTENTS) for one in storages)

    def follow(self, call: OperatorCall, result: Any, changed: Sequence[torch.Tensor]) -> None:
        """Keep known, or make unknown, what an operator has returned and changed."""
        info = call.info
        if info.bare in _UNWRITTEN or (info.is_view and not changed):
            return
        fakes = made = [one for one in flat(result) if is_fake(one)]
        if fakes and changed:
            old = {one.untyped_storage()._cdata for one in call.given}
            made = [one for one in fakes if one.untyped_storage()._cdata not in old]  # others were given
        if not (made or changed):
            return
        mask = self._mask(call, made, changed)
        found = NotImplemented
        most = storage_contents.most_elements(call.given)
        if mask is not _NOTHING and all(storage_contents.make_room(one, most) for one in changed if is_fake(one)):
            found = self.computed(info.function, call.args, call.kwargs)
        if found is NotImplemented:
            for one in filter(is_fake, changed):
                storage_contents.drop_contents(one)
            return
        for one in filter(is_fake, changed):
            storage_contents.set_mask(one, mask)
        if made:
            new = set(map(id, made))
            for one, contents in zip(fakes, flat(found), strict=False):
                if id(one) in new and contents.shape == one.shape and not contents.is_meta:
                    storage_contents.set_contents(one, contents, mask, most)

    def _mask(self, call: OperatorCall, made: Sequence[torch.Tensor], changed: Sequence[torch.Tensor]) -> Any:
        """Return which elements of an operator's results are known: None for all, ``_NOTHING`` if none are."""
        info, given, args, kwargs = call
        name = info.bare
        needed = given[1:] if name in _SHAPE_ONLY or (changed and name in _OVERWRITES) else given
        known = all(map(is_known, needed))
        if not known and not (name in _JOINED or name in _BY_ELEMENT or torch.Tag.pointwise in info.function.tags):
            return _NOTHING
        most = storage_contents.most_elements(given)
        if any(one.numel() > most for one in (*needed, *made, *changed)):
            return _NOTHING
        if known:
            fractions = name in _PRODUCTS and any(one.is_floating_point() for one in given)
            return _NOTHING if fractions else None
        results = made or changed
        if len(results) != 1:
            return _NOTHING
        if name == "masked_fill" and all(map(is_known, needed[1:])):
            return _mask_of_filled(*needed[:2])
        if name in _JOINED:
            return _mask_of_joined(needed, lambda masks: info.function(masks, *args[1:], **kwargs))
        return _mask_by_element(needed, results[0])


_NOTHING: Any = object()


def _mask_of_joined(needed: Sequence[torch.Tensor], join: Callable[[list[torch.Tensor]], Any]) -> Any:
    """Return which elements are known of tensors that are put together."""
    parts = [known_part(one) for one in needed]
    if all(part is None for part in parts):
        return _NOTHING
    with torch._C._DisableTorchDispatch():
        masks = [
            torch.full(one.size(), part is not None) if part is None or part[1] is None else part[1]
            for one, part in zip(needed, parts, strict=True)
        ]
        return join(masks)


def _mask_of_filled(tensor: torch.Tensor, filled: torch.Tensor) -> Any:
    """Return which elements of a tensor are known of which those are ``filled``, known, with a known number."""
    part, places = known_part(tensor), storage_contents.of(filled)
    assert places is not None
    with torch._C._DisableTorchDispatch():
        mask = places.expand(torch.broadcast_shapes(tensor.shape, places.shape))
        mask = mask.clone() if part is None or part[1] is None else mask | part[1]
        return mask if mask.any() else _NOTHING


def _mask_by_element(needed: Sequence[torch.Tensor], result: torch.Tensor) -> Any:
    """Return which elements of a result are known, each of which depends on one element of each argument."""
    parts = [known_part(one) for one in needed]
    if None in parts:
        return _NOTHING
    with torch._C._DisableTorchDispatch():
        mask = torch.ones(result.size(), dtype=torch.bool)
        for part in parts:
            if part is not None and part[1] is not None:
                mask &= part[1]
        return mask if mask.any() else _NOTHING


def _on_the_host(values: Iterable[Any]) -> list[Any]:
    return [_one(value) for value in values]


def _one(value: Any) -> Any:
    """Return an argument as it is on the host: a tensor's contents, zeros where nothing is known; the host for the device."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return storage_contents.real_or_zeros(value)
    if kind is torch.device:
        return torch.device("cpu") if value.type == "cuda" else value
    if kind is list or kind is tuple:
        return kind(_on_the_host(value))
    return value
