"""A compiled step, captured without a GPU, against the described one: Llama 3 8B's layers with ``torch.compile`` and on paper.

``examples/train/transformer.py`` compiled layer by layer (as torchtitan does) and as a whole, in bf16 of 4,096 tokens on an
H100: PyTorch's compiler decides what its graphs compute, and the rules of ``--kernels compiled`` what a kernel is, in both. The
described layer is written by hand. ``python -m validation.compiled_steps`` prints the time of one layer, forward and backward.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from validation.report import DataAbsent, Row, relative

TRAIN = Path(__file__).resolve().parents[1] / "examples" / "train"
GPU, TOKENS, LAYERS = "H100-SXM", 4096, 3
#: The layer whose time is compared: neither the first nor the last.
INNER = "layers.1."
PHASES = ("forward", "backward")


def rows() -> list[Row]:
    found = seconds()
    described, as_a_whole = found.pop("described"), found["compiled as a whole"]
    block = found["compiled layer by layer"]
    against = "described, --kernels compiled"
    return [
        Row("a layer compiled by itself", against, 1, relative(sum(block), sum(described)), 0.01),
        Row("a layer of a model compiled as a whole", against, 1, relative(sum(as_a_whole), sum(described)), 0.03),
    ]


def seconds() -> dict[str, tuple[float, ...]]:
    """Return the time of a layer's forward and backward pass, in seconds, by how the model is run."""
    import triosim
    from triosim.models import Llama

    model = Llama(layers=LAYERS, hidden=4096, heads=32, kv_heads=8, feed_forward=14336, sequence=TOKENS)
    found = {"described": _of_a_layer(triosim.describe(model, gpu=GPU, kernels="compiled"))}
    for name, compiled in (
        ("not compiled", lambda model: model),
        ("compiled layer by layer", _by_layers),
        ("compiled as a whole", lambda model: _torch().compile(model)),
    ):
        found[name] = _of_a_layer(_captured(compiled))
    return found


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise DataAbsent("torch is not installed") from None


def _by_layers(model: Any) -> Any:
    _transformer().compile_layers(model)
    return model


def _transformer() -> Any:
    sys.path.insert(0, str(TRAIN))
    try:
        return importlib.import_module("transformer")
    finally:
        sys.path.remove(str(TRAIN))


def _captured(compiled: Callable[[Any], Any]) -> Any:
    """Return the trace of a step of the model that ``compiled`` makes."""
    torch = _torch()
    transformer = _transformer()
    from triosim.compute.pricing.prediction import with_predicted_times
    from triosim.tracer import fake_capture

    config = transformer.Config(width=4096, layers=LAYERS, heads=32, key_heads=8, hidden=14336)
    with fake_capture(GPU) as capture:
        with torch.device("cuda"):
            model = compiled(transformer.Transformer(config).bfloat16())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            tokens = torch.randint(0, config.vocabulary, (1, TOKENS + 1), device="cuda")
            transformer.next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return with_predicted_times(capture.trace)


def _of_a_layer(trace: Any) -> tuple[float, ...]:
    """Return the seconds of the inner layer in each phase."""
    inner = [one for one in trace.operators if f"{one.layer.removeprefix('model.')}.".startswith(INNER)]
    return tuple([sum(one.seconds for one in inner if one.phase == phase) for phase in PHASES])


def main() -> None:
    found = seconds()
    described = found["described"]
    print("| a layer of Llama 3 8B | forward | backward | off |")
    print("|---|--:|--:|--:|")
    for name, times in found.items():
        both = " | ".join([f"{1e3 * one:.3f} ms" for one in times])
        print(f"| {name} | {both} | {100 * (sum(times) / sum(described) - 1):+.1f}% |", flush=True)


if __name__ == "__main__":
    main()
