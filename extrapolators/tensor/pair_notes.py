"""What a reader should know of how tensor parallelism paired layers: which pair with no other, which heads do not divide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from triosim.errors import TraceError
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


def gathered(operators: Iterable[Operator]) -> Iterator[str]:
    """Yield the note that attention is whole on every rank in the style "gather", where there is attention."""
    if any(is_attention(base_name(operator.name)) for operator in operators):
        yield (
            "tp: style gather computes attention, norms and residuals whole on every GPU; --tp-style megatron divides heads, "
            "as transformers are trained"
        )


def paired(
    apart: Sequence[str],
    latent: Sequence[str],
    shared: Mapping[int, Sequence[str]],
    undivided: Mapping[int, Sequence[str]],
    ranks: int,
    *,
    by_sequence: bool,
) -> Iterator[str]:
    """Yield the notes on layers that stand ``apart``, make ``latent`` vectors, or have heads (by number) that several ranks
    share, or that do not divide.
    """
    if apart:
        done = "they are whole on every GPU" if by_sequence else "what they make is gathered"
        yield f"tp: {listed(apart)} pair with no other layer; {done}"
    if latent:
        yield f"tp: {listed(latent)} make what all heads share; they are whole on every GPU"
    for heads, names in shared.items():
        yield f"tp: the {heads} heads of keys and values of {listed(names)} are on {ranks // heads} GPUs each"
    for heads, names in undivided.items():
        yield (
            f"tp: the {heads} heads of {listed(names)} do not divide by {ranks}; the layers around them are gathered instead "
            "of paired"
        )


def uneven(layers: Sequence[str], ranks: int) -> str:
    """Return the note on layers whose shares are not all of one size."""
    return (
        f"tp: the output features of {listed(layers)} do not divide by {ranks}; every GPU is charged the largest share"
    )


def listed(layers: Sequence[str]) -> str:
    """Return the first names of some layers, each once, and how many more there are."""
    names = list(dict.fromkeys(layers))
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more layers" if len(names) > 3 else shown
