"""The time to simulate large models on thousands of GPUs: GPT-3 of 145.6 billion parameters, Llama 3 405B, and others.

    python benchmarks/large_models.py [--most GPUS] [--unfolded GPUS]

GPT-3: tensor parallelism over 8, a 1F1B pipeline over 8 with 64 micro-batches of one sample, data parallelism over the rest, on
a ``dgx-a100``: the parallelism of the largest study of Maya (7.4), which took about 25 minutes; with and without folding.
Llama 3 405B: 512 GPUs of a ``dgx-h100``, fsdp over 8, tensor parallelism over 8, a pipeline over 8 with 32 micro-batches of a
sample of 8,192 tokens, 1F1B and interleaved. Mixtral 8x7B: experts over 8, fsdp over all, 4,096 tokens a GPU, as many for each
expert, or drawn; DeepSeek-V3: over 64, drawn. Llama 3 8B: a sequence of 65,536 tokens over 8 (ring attention), fsdp over the
rest. These three on a ``dgx-h100``.
Each row is a process of its own, from the description of the model to the result.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from typing import Any

HEADER = "| model | GPUs | folded | processor s | whole s | peak MB | step s |\n|---|--:|---|--:|--:|--:|--:|"
LLAMA = {"1f1b": "Llama 3 405B, 1F1B", "interleaved": "Llama 3 405B, interleaved"}
NAMES = {
    **LLAMA,
    "gpt": "GPT-3 145.6B",
    "mixtral": "Mixtral 8x7B",
    "drawn": "Mixtral 8x7B, drawn",
    "deepseek": "DeepSeek-V3, drawn",
    "cp": "Llama 3 8B, cp",
}


def gpt(gpus: int, **options: Any) -> Any:
    """Describe and simulate GPT-3."""
    import triosim
    from triosim.models import GPT

    model = GPT(layers=80, hidden=12288, heads=96)
    replicas = gpus // 64
    return triosim.simulate(
        triosim.describe(model, batch=1, dtype="fp16", gpu="A100"),
        f"tp=8,pp=8,dp={replicas}",
        topology=f"dgx-a100(gpus={gpus})",
        tp_style="megatron",
        schedule="1f1b",
        global_batch_size=64 * replicas,
        micro_batches=64,
        **options,
    )


def llama(gpus: int, schedule: str, **options: Any) -> Any:
    """Describe and simulate Llama 3 405B."""
    import triosim

    replicas = gpus // 64
    return triosim.simulate(
        triosim.describe("llama3-405b", batch=1, sequence=8192, dtype="bf16", gpu="H100"),
        f"fsdp={replicas},tp=8,pp=8",
        topology=f"dgx-h100(gpus={gpus})",
        tp_style="megatron",
        schedule=schedule,
        global_batch_size=32 * replicas,
        micro_batches=32,
        **options,
    )


def mixtral(gpus: int, load: str, **options: Any) -> Any:
    """Describe and simulate Mixtral 8x7B."""
    import triosim

    return triosim.simulate(
        triosim.describe("mixtral-8x7b", batch=1, sequence=4096, dtype="bf16", gpu="H100"),
        f"fsdp={gpus},ep=8",
        topology=f"dgx-h100(gpus={gpus})",
        options={"load": load},
        **options,
    )


def deepseek(gpus: int, **options: Any) -> Any:
    """Describe and simulate DeepSeek-V3, all of whose ranks run programs of their own."""
    import triosim

    return triosim.simulate(
        triosim.describe("deepseek-v3", batch=1, sequence=4096, dtype="bf16", gpu="H100"),
        f"dp={gpus},ep={gpus}",
        topology=f"dgx-h100(gpus={gpus})",
        **options,
    )


def by_context(gpus: int, **options: Any) -> Any:
    """Describe and simulate Llama 3 8B on long sequences."""
    import triosim

    return triosim.simulate(
        triosim.describe("llama3-8b", batch=1, sequence=65536, dtype="bf16", gpu="H100"),
        f"cp=8,fsdp={gpus // 8}",
        topology=f"dgx-h100(gpus={gpus})",
        **options,
    )


def one(model: str, gpus: int, fold: bool) -> None:
    """Describe and simulate in this process, and print a row."""
    began = time.perf_counter()
    if model == "gpt":
        result = gpt(gpus, fold=fold)
    elif model == "cp":
        result = by_context(gpus, fold=fold)
    elif model == "deepseek":
        result = deepseek(gpus, fold=fold)
    elif model in LLAMA:
        result = llama(gpus, model, fold=fold)
    else:
        result = mixtral(gpus, "balanced" if model == "mixtral" else "zipf", fold=fold)
    assert not any(note.startswith("every rank is simulated") for note in result.data.notes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"| {NAMES[model]} | {gpus:,} | {'yes' if fold else 'no'} | {time.process_time():.1f} "
        f"| {time.perf_counter() - began:.1f} | {used.ru_maxrss / 1024:,.0f} | {result.step_time_s:.3f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=16384, metavar="GPUS", help="folded: up to so many")
    parser.add_argument("--unfolded", type=int, default=256, metavar="GPUS", help="every rank by itself: up to so many")
    parser.add_argument("--one", nargs=3, metavar=("MODEL", "GPUS", "HOW"), help="one row: mixtral 64 fold, or all")
    options = parser.parse_args()
    if options.one:
        model, gpus, how = options.one
        one(model, int(gpus), how == "fold")
        return
    print(HEADER, flush=True)
    sizes = [64 * 4**power for power in range(10)]
    rows = [("gpt", gpus, "fold") for gpus in sizes if gpus <= options.most]
    rows += [(schedule, 512, "fold") for schedule in LLAMA]
    rows += [("gpt", gpus, "all") for gpus in sizes if gpus <= options.unfolded]
    for model in ("mixtral", "drawn", "cp"):
        rows += [(model, gpus, "fold") for gpus in sizes[:3] if gpus <= options.most]
        rows += [(model, gpus, "all") for gpus in sizes if gpus <= options.unfolded]
    rows.append(("deepseek", 64, "fold"))
    for model, gpus, how in rows:
        subprocess.run([sys.executable, __file__, "--one", model, str(gpus), how], check=True)


if __name__ == "__main__":
    main()
