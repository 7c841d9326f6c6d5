"""Two ranks that sleep in the place of computing and all-reduce between: for two processes over gloo, and for ``triosim run``.

The last rank sleeps longer in every second step, and the first one waits for it. Each step's seconds are printed.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist

LAYERS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forward", type=float, default=0.01, help="seconds of a layer")
    parser.add_argument("--backward", type=float, default=0.02, help="seconds of a layer")
    parser.add_argument(
        "--late", type=float, default=0.0, help="seconds that the last rank is late in every second step"
    )
    parser.add_argument("--elements", type=int, default=2**18, help="of a layer's gradients, of four bytes")
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    gradients = [torch.ones(args.elements, device="cuda" if on_gpu else "cpu") for _ in range(LAYERS)]
    for step in range(args.steps):
        dist.barrier()
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        time.sleep(args.forward * LAYERS)
        if rank == 1 and step % 2:
            time.sleep(args.late)
        works = []
        for gradient in gradients:
            time.sleep(args.backward)
            works.append(dist.all_reduce(gradient, async_op=True))
        for work in works:
            work.wait()
        if on_gpu:
            torch.cuda.synchronize()
        print(f"step {step}: {time.perf_counter() - began:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
