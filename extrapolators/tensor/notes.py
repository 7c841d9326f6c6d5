"""Notes on how tensor parallelism sharded a network, and errors where it could not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from triosim.errors import OptionError, TraceError
from triosim.operators.features import base_name, is_attention
from triosim.trace import Operator


def require_sharded(any_layer: bool, any_backward: bool, ranks: int) -> None:
    """Raise ``TraceError`` where no layer can be sharded, or a training step has no backward operators of sharded layers."""
    if not any_layer:
        raise TraceError(
            f"no linear, convolution or embedding layer can be divided among {ranks} GPUs",
            fix="capture a trace with the shapes of parameters, or use another number",
        )
    if not any_backward:
        raise TraceError(
            "the backward operators do not say which forward operators they differentiate, so tensor parallelism "
            "would communicate nothing in the backward pass",
            fix="capture the trace with its execution graph, or simulate inference",
        )


def require_heads(undivided: Mapping[int, Sequence[str]], ranks: int) -> None:
    """Raise ``OptionError`` where heads, by number with their layers, do not divide, which sequence parallelism needs."""
    for heads, names in undivided.items():
        raise OptionError(
            f"the {heads} heads of {listed(names)} do not divide by {ranks}",
            where="sequence parallel",
            fix=f"use a number of GPUs that divides {heads}, or leave it out",
        )


def style_gather(operators: Iterable[Operator]) -> Iterator[str]:
    """Yield the note that the style "gather" does not divide attention, where there is attention."""
    if any(is_attention(base_name(operator.name)) for operator in operators):
        yield (
            "tp: style gather computes attention, norms and residuals whole on every GPU; --tp-style megatron divides heads, "
            "as transformers are trained"
        )


def unpaired(layers: Sequence[str], *, by_sequence: bool) -> Iterator[str]:
    """Yield the note on layers that are in no pair."""
    if layers:
        done = "every GPU keeps a full copy" if by_sequence else "their outputs are all-gathered"
        yield f"tp: {listed(layers)} cannot be paired with another layer, so {done}"


def latent(layers: Sequence[str]) -> Iterator[str]:
    """Yield the note on layers that make what all heads are computed from."""
    if layers:
        yield f"tp: {listed(layers)} produce latent vectors shared by all heads, so every GPU keeps a full copy"


def shared_heads(layers: Mapping[int, Sequence[str]], ranks: int) -> Iterator[str]:
    """Yield the notes on heads of keys and values, by number with their layers, that several ranks have."""
    for heads, names in layers.items():
        yield f"tp: each of the {heads} key and value heads of {listed(names)} is on {ranks // heads} GPUs"


def undivided_heads(layers: Mapping[int, Sequence[str]], ranks: int) -> Iterator[str]:
    """Yield the notes on heads, by number with their layers, that do not divide."""
    for heads, names in layers.items():
        yield (
            f"tp: the {heads} heads of {listed(names)} do not divide by {ranks}, so the outputs of the layers around them are "
            "all-gathered"
        )


def uneven(layers: Sequence[str], ranks: int) -> Iterator[str]:
    """Yield the note on layers whose shards are not all of one size."""
    if layers:
        yield (
            f"tp: the output features of {listed(layers)} do not divide by {ranks}; every GPU is charged the largest share"
        )


def all_tokens(axis: str, layers: Sequence[str]) -> Iterator[str]:
    """Yield the note on operators that need the tokens of all ranks."""
    if layers:
        yield f"{axis}: {listed(layers)} need all tokens, which are all-gathered"


def listed(layers: Sequence[str]) -> str:
    """Return the first names of some layers, each once, and how many more there are."""
    names = list(dict.fromkeys(layers))
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more layers" if len(names) > 3 else shown
