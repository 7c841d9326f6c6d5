"""Notes on how tensor and context parallelism sharded a network, and errors where they could not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triosim.errors import OptionError, TraceError


def note(text: str, layers: Sequence[str]) -> list[str]:
    """Return the note on some layers, whose names take the place of ``{}``; none where there are no layers."""
    return [text.format(_listed(layers))] if layers else []


def all_tokens(axis: str, layers: Sequence[str]) -> list[str]:
    """Return the note on operators that need the tokens of all ranks."""
    return note(f"{axis}: {{}} need all tokens, which are all-gathered", layers)


def require_sharded(any_layer: bool, any_backward: bool, ranks: int) -> None:
    """Raise ``TraceError`` where no layer can be sharded, or a training step has no backward operators of sharded layers."""
    if not any_layer:
        what = f"no linear, convolution or embedding layer can be divided among {ranks} GPUs"
        raise TraceError(what, fix="capture a trace with the shapes of parameters, or use another number")
    if not any_backward:
        raise TraceError(
            "the backward operators do not say which forward operators they differentiate, so tensor parallelism "
            "would communicate nothing in the backward pass",
            fix="capture the trace with its execution graph, or simulate inference",
        )


def require_heads(undivided: Mapping[int, Sequence[str]], ranks: int) -> None:
    """Raise ``OptionError`` where heads, by number with their layers, do not divide, which sequence parallelism needs."""
    for heads, names in undivided.items():
        what = f"the {heads} heads of {_listed(names)} are not divisible by {ranks}"
        fix = f"use a number of GPUs that divides {heads}, or leave it out"
        raise OptionError(what, where="sequence parallel", fix=fix)


def _listed(layers: Sequence[str]) -> str:
    """Return the first names of some layers, each once, and how many more there are."""
    names = list(dict.fromkeys(layers))
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more layers" if len(names) > 3 else shown
