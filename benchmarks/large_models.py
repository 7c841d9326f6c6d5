"""How long a large model on thousands of GPUs takes to simulate: GPT-3 of 145.6 billion parameters, with and without folding.

    python benchmarks/large_models.py [--most GPUS] [--unfolded GPUS]

Tensor parallelism over 8, a 1F1B pipeline over 8 with 64 micro-batches of one sample, data parallelism over the rest, on a
``dgx-a100``: the parallelism of the largest study of Maya (7.4), of up to 16,384 GPUs, which took about 25 minutes.
Each row is a process of its own, from the description of the model to the result.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

HEADER = "| GPUs | folded | processor s | whole s | peak MB | step s |\n|--:|---|--:|--:|--:|--:|"


def one(gpus: int, fold: bool) -> None:
    """Describe and simulate in this process, and print a row."""
    began = time.perf_counter()
    import triosim
    from triosim.models import GPT

    model = GPT(layers=80, hidden=12288, heads=96)
    trace = triosim.describe(model, batch=1, dtype="fp16", gpu="A100")
    replicas = gpus // 64
    result = triosim.simulate(
        trace,
        f"tp=8,pp=8,dp={replicas}",
        topology=f"dgx-a100(gpus={gpus})",
        tp_style="megatron",
        schedule="1f1b",
        global_batch_size=64 * replicas,
        micro_batches=64,
        fold=fold,
    )
    assert not any(note.startswith("every rank is simulated") for note in result.data.notes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        f"| {gpus:,} | {'yes' if fold else 'no'} | {time.process_time():.1f} | {time.perf_counter() - began:.1f} "
        f"| {used.ru_maxrss / 1024:,.0f} | {result.step_time_s:.3f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=16384, metavar="GPUS", help="folded: up to so many")
    parser.add_argument("--unfolded", type=int, default=256, metavar="GPUS", help="every rank by itself: up to so many")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(int(options.one[0]), options.one[1] == "fold")
        return
    print(HEADER, flush=True)
    for most, how in ((options.most, "fold"), (options.unfolded, "all")):
        gpus = 64
        while gpus <= most:
            subprocess.run([sys.executable, __file__, "--one", str(gpus), how], check=True)
            gpus *= 4


if __name__ == "__main__":
    main()
