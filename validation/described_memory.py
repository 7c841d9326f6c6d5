"""Peak memory of described training steps on one GPU, against what TorchSim's authors measured on an H100 (their table 19).

``python -m validation.described_memory [--only gpt2]`` prints every row. Nothing is captured, and nothing is fitted: models are
described from their sizes, Llama, Gemma and T5 as transformers of 2024 wrote them, and trained with AdamW, kernel by kernel.
Measured is the peak of active bytes. Llama and Gemma recompute their feed-forward networks and norms, T5 its feed-forward
layers and norms, CLIP and ViT whole blocks. Rows of ConvNeXt with checkpoints are left out: what they recompute is a module of
timm, which a description does not have. ``validation.memory`` has the same table for captured steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

import triosim
from triosim.models import T5, Gemma, Llama
from triosim.models.catalogue import MODELS
from validation.memory import GIB, TABLE_19, Case
from validation.report import Row, relative

_NETWORK = "modules=mlp,input_layernorm,post_attention_layernorm"
#: The described model of each, the words of a sample where they are not in the table, and what is recomputed.
_DESCRIBED: dict[str, tuple[str, int | None, str | None]] = {
    "gemma_2b": ("gemma-2b", None, _NETWORK),
    "clip": ("clip-vit-l-14-336", 20, "checkpoint"),
    "gpt2": ("gpt2-large", None, None),
    "t5": ("t5-large", None, "modules=DenseReluDense,layer_norm"),
    "llama_1b": ("llama3.2-1b", None, _NETWORK),
    "convnext": ("convnextv2-huge", None, None),
    "vit": ("vit_h_14", None, "checkpoint"),
}
_PRECISIONS: dict[str, tuple[str, Literal["plain", "mixed"]]] = {
    "FP": ("float32", "plain"),
    "HP": ("float16", "plain"),
    "MP": ("float16", "mixed"),
}

#: The mean error that is claimed of all rows.
CLAIM = 0.02


def cases() -> list[Case]:
    """The rows that can be described."""
    return [case for case in TABLE_19 if not case.checkpoint or _DESCRIBED[case.model][2] is not None]


def peak_gib(case: Case) -> float:
    """Return the most that is allocated in a step, in GiB."""
    name, words, again = _DESCRIBED[case.model]
    model, (dtype, precision) = MODELS[name], _PRECISIONS[case.precision]
    if isinstance(model, (Gemma, Llama, T5)):
        model = replace(model, style="transformers-2024")
    sequence = words or (case.size if model.sequence else None)
    trace = triosim.describe(
        model, batch=case.batch, sequence=sequence, dtype=dtype, precision=precision, gpu="H100-SXM"
    )
    recompute = again if case.checkpoint and again else "none"
    return triosim.rank_memory(trace, recompute=recompute).report().peak_allocated / GIB


def rows() -> list[Row]:
    """The mean error of all."""
    some = cases()
    error = fmean(relative(peak_gib(case), case.measured) for case in some)
    return [Row("peak memory of described models, mean error", "TorchSim table 19, H100", len(some), error, CLAIM)]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.described_memory", description=__doc__)
    parser.add_argument("--only", choices=list(_DESCRIBED), help="the rows of one model alone")
    options = parser.parse_args(given)
    print("| model | batch | size | precision | checkpoints | measured GiB | predicted | off |")
    print("|---|--:|--:|---|---|--:|--:|--:|")
    errors: dict[str, list[float]] = {}
    for case in cases():
        if options.only not in (None, case.model):
            continue
        ours = peak_gib(case)
        errors.setdefault(case.model, []).append(relative(ours, case.measured))
        print(
            f"| {case.model} | {case.batch} | {case.size} | {case.precision} | {'yes' if case.checkpoint else 'no'} "
            f"| {case.measured:.2f} | {ours:.2f} | {100 * (ours / case.measured - 1):+.1f}% |",
            flush=True,
        )
    for model, some in errors.items():
        print(f"{model}: mean error {fmean(some):.1%}, largest {max(some):.1%}")
    print(f"all: mean error {fmean(one for some in errors.values() for one in some):.1%}")


if __name__ == "__main__":
    main()
