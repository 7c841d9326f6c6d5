"""Offload and memory pools against published figures, against FSDP2's own offload without a GPU, and against bounds by hand.

- ZeRO-Offload (Ren et al. 2021), its abstract (https://huggingface.co/papers/2101.06840): a GPT of 10 billion parameters at
  40 TFLOP/s on one V100 (which FLOPs are counted is not said: ours are those of the model, without recomputation), and 13
  billion on one GPU. Its 10 billion are 50 layers of 4,096, 10 samples (https://www.deepspeed.ai/tutorials/zero-offload).
- ZeRO-3 Offload (https://www.deepspeed.ai/2021/03/07/zero3-offload.html): 40 billion parameters on one V100 of 32 GB beside
  1.5 TB of host memory; ZeRO-Infinity (Rajbhandari et al. 2021), its abstract (https://pith.science/p/2104.07857): a trillion
  on one DGX-2.
- DeepSpeed's estimators of model states (https://deepspeed.readthedocs.io/en/latest/memory.html, 0.19.8), their factor for
  buffers left out: on the GPU 2 bytes a parameter, on the host 16, or 18 with parameters; their gradients there are in fp32.
- DeepSpeed 0.14.2 with Llama-7B on eight A800 (https://gist.github.com/chenyaofo/d4cd6a20ab4b95cb3a49491747e2139a): its
  throughput is printed beside ours, not claimed, as the offloaded steps say nothing of the threads that updated parameters.
- prime-rl's CPU AdamW with 30 threads a rank, on a node with 8 H200: 12.8 s for 171 billion parameters
  (https://github.com/PrimeIntellect-ai/prime-rl/pull/3248); those of its machine's memory are assumed to be a DGX H200's.
- FSDP2's ``CPUOffloadPolicy``, the real wrapper, captured as one of four ranks (with PyTorch).
- ASTRA-sim 2.0, section V-B and Table V: a sweep over the bandwidth of a pool's GPU links and of its memory groups.

``python -m validation.offload`` prints the pool's best over its baseline by what the paper leaves open, and DeepSpeed's steps.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import simpy

import triosim
from triosim.memory import analyse
from triosim.models import GPT
from triosim.networks import AnalyticalNetwork, Topology
from triosim.results.result import Result
from triosim.trace import Trace
from validation.report import Row, relative

SCRIPT = Path(__file__).parent / "scripts" / "fsdp2_offload.py"
GB = 1e9

#: Billions of parameters: layers, width, heads and samples a GPU; those of 13 and 40 billion are ours.
GPTS = {10: (50, 4096, 32, 10), 13: (65, 4096, 32, 4), 40: (50, 8192, 64, 4)}
#: Bytes a parameter that DeepSpeed's estimators count on the host.
ESTIMATED = {("zero2", "optimizer=host"): 16, ("fsdp", "optimizer=host,parameters=host"): 18}
LENGTH, WORDS = 1024, 50_304

#: The parameters that prime-rl updated on the CPUs of a node with 8 H200, and its seconds.
UPDATED, UPDATE_SECONDS = 171e9, 12.8

#: Llama-7B at 4,096 tokens, 64 samples a step on eight A800: ZeRO stage, recomputation, offload, micro-batch, samples a second.
LLAMA_7B = (
    ("zero2", "none", "none", 1, 5.33),
    ("zero2", "full", "none", 1, 4.19),
    ("zero2", "full", "optimizer=host", 1, 1.81),
    ("zero2", "full", "none", 4, 4.69),
    ("fsdp", "none", "none", 2, 4.95),
    ("fsdp", "full", "none", 2, 4.45),
    ("fsdp", "full", "optimizer=host", 2, 2.05),
    ("fsdp", "full", "optimizer=host,parameters=host", 4, 2.06),
    ("fsdp", "full", "none", 8, 4.73),
)

#: ASTRA-sim 2.0, Table V and section V-B.
GROUPS, SWITCHES, NODES, GPUS = 256, 16, 16, 256
FABRIC, MEMORY = range(256, 2049, 256), range(100, 501, 100)  # GB/s, of a GPU's link and of a memory group
BASELINE, BEST = (256, 100), (512, 500)
PUBLISHED_SPEEDUP = 4.6


def rows() -> list[Row]:
    found = [*_zero_offload(), *_update(), *_fits(), *_bounds(), *_pool()]
    if importlib.util.find_spec("torch") is not None:
        found.extend(_fsdp2())
    return found


# ---- ZeRO-Offload and ZeRO-Infinity -----------------------------------------------------------------------------


def _zero_offload() -> list[Row]:
    result = _offloaded(10)
    layers, width, _, batch = GPTS[10]
    flops = 72 * batch * LENGTH * layers * width**2 * (1 + LENGTH / (6 * width) + WORDS / (16 * layers * width))
    rate = flops / result.step_time_s / 1e12
    assert result.memory is not None
    on_gpu = result.memory.fullest.by_category["parameter"] / parameters(10)
    errors = [relative(host_bytes(*case), estimated) for case, estimated in ESTIMATED.items()]
    return [
        Row(f"10 billion parameters on one V100: {rate:.0f} TFLOP/s", "ZeRO-Offload, 40", 1, relative(rate, 40), 0.2),
        Row("model states on the host, bytes a parameter", "DeepSpeed's estimators, 16, 18", 2, max(errors), 1e-3),
        Row("model states on the GPU, bytes a parameter", "DeepSpeed's estimator, 2", 1, relative(on_gpu, 2), 1e-3),
    ]


def _update() -> list[Row]:
    """The update of 171 billion parameters on the hosts of 8 H200, as that of 8 billion, which fit there."""
    result = triosim.simulate(
        "llama-3.1-8b", "fsdp", gpus=8, gpu="H200", seq=2048, offload="optimizer=host", optimizer="master-adamw"
    )
    seconds = result.data.ranks[0].exposed_host_s * UPDATED / _LLAMA
    error = relative(seconds, UPDATE_SECONDS)
    return [
        Row(f"171 billion parameters updated on 8 H200's hosts: {seconds:.1f} s", "prime-rl, 12.8 s", 1, error, 0.3)
    ]


def host_bytes(parallel: str, offload: str, gpus: int = 4) -> float:
    """Return the bytes of a parameter that ranks hold on their hosts together, with gradients in fp32 as DeepSpeed has them."""
    memory = triosim.rank_memory(
        described(10), parallel, gpus=gpus, topology="dgx-2", offload=offload, gradient_dtype="fp32"
    )
    return gpus * sum(memory.fullest.outside["host"].values()) / parameters(10)


def parameters(size: int) -> float:
    """Return the parameters of the GPT of so many billions."""
    layers, width, *_ = GPTS[size]
    return layers * (12 * width**2 + 13 * width) + (WORDS + LENGTH + 2) * width


def described(size: int) -> Trace:
    layers, width, heads, batch = GPTS[size]
    model = GPT(layers=layers, hidden=width, heads=heads, vocab=WORDS, sequence=LENGTH)
    gpu = "V100-SXM2-32GB"
    return triosim.describe(model, batch=batch, gpu=gpu, dtype="float16", optimizer="master-adamw", stack="deepspeed")


def _offloaded(size: int, parallel: str = "single", offload: str = "optimizer=host") -> Result:
    return triosim.simulate(described(size), parallel, gpus=1, topology="dgx-2", offload=offload, recompute="full")


def _fits() -> list[Row]:
    steps = _offloaded(13), _offloaded(40, "fsdp", "optimizer=host,parameters=host")
    on_drives = Topology.load("dgx-2")
    drives = sum(one.capacity for one in on_drives.memories.values() if one.tier == "nvme")
    wrong = [*(step.memory is None or not step.memory.fits for step in steps), drives < 20 * 1e12]
    return [
        Row(
            "13 and 40 billion parameters fit a V100 of 32 GB, a trillion (20 bytes each) the drives of a DGX-2",
            "ZeRO-Offload, ZeRO-3 Offload, ZeRO-Infinity",
            len(wrong),
            float(sum(wrong)),
            0.0,
        )
    ]


# ---- bounds -----------------------------------------------------------------------------------------------------

#: Parameters of Llama-3.1-8B, what AdamW in bf16 reads and writes of each (four tensors and three), and its two states.
_LLAMA, _TRAFFIC, _STATES = 8.03e9, 14, 4
#: A DGX-H100's two main memories together, and what its drives write, in bytes per second.
_DRAM, _DRIVES = 2 * 0.8 * 307.2 * GB, 32 * GB
#: What cannot begin before the last gradient is there, or end after the first parameter is needed, in seconds.
_BEHIND = {
    "optimizer=host": _LLAMA * _TRAFFIC / _DRAM,
    "optimizer=host,parameters=host": _LLAMA * _TRAFFIC / _DRAM,
    "optimizer=nvme,parameters=host": _LLAMA * _STATES / _DRIVES,
    "activations=host": 0.0,
}


def _bounds() -> list[Row]:
    """Steps last as long as computing and what cannot overlap with it, or the busiest link; no longer than all together."""
    outside = 0
    topology = Topology.load("dgx-h100", gpus=8)
    for offload, behind in _BEHIND.items():
        result = triosim.simulate(
            "llama-3.1-8b", "fsdp", gpus=8, gpu="H100", seq=2048, offload=offload, host_overhead="none", links=True
        )
        busiest = max(link.bytes / topology.links[link.name].bandwidth for link in result.data.links)
        longest = max(rank.compute_s + rank.communication_s for rank in result.data.ranks)
        least = max(busiest, max(rank.compute_s for rank in result.data.ranks) + behind)
        outside += not least * (1 - 1e-3) <= result.step_time_s <= longest
    what = "steps outside of bounds by hand: bytes over bandwidth, what can overlap and what not"
    return [Row(what, "8B on a DGX-H100, four offloads", len(_BEHIND), float(outside), 0.0)]


# ---- FSDP2 ------------------------------------------------------------------------------------------------------


def _fsdp2() -> list[Row]:
    """What is on the GPU and on the host, with the real wrapper and as it is extrapolated from the step on one GPU."""
    alone, _ = _captured("alone", 1)
    errors, on_host = [], []
    for wrapped, offload in (("sharded", "none"), ("offloaded", "optimizer=host,parameters=host")):
        trace, held = _captured(wrapped, 4)
        found = triosim.rank_memory(alone, "fsdp", gpus=4, offload=offload).fullest
        errors.append(relative(found.peak_bytes, analyse(trace, "H100-SXM").peak_live))
        on_host.append(relative(sum(found.outside.get("host", {}).values()), held))
    real = "FSDP2, run without a GPU"
    return [
        Row("memory of a GPU with CPUOffloadPolicy and without", real, 2, max(errors), 1e-6),
        Row("memory of a rank on its host with CPUOffloadPolicy and without", real, 2, max(on_host), 1e-6),
    ]


def _captured(wrapped: str, world: int) -> tuple[Trace, int]:
    """Return the trace of a wrapped model's step, and the bytes that a rank has on its host."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_capture, wrapped, world).result()


def _capture(wrapped: str, world: int) -> tuple[Trace, int]:
    from triosim.tracer.fake_device import FakeDevice
    from triosim.tracer.script_runner import run_script

    printed = io.StringIO()
    with FakeDevice("H100-SXM", world=world) as device, contextlib.redirect_stdout(printed):
        run_script(SCRIPT, [wrapped], device, skip=1)
    return device.traces[0], int(printed.getvalue().split()[-1])


# ---- pools ------------------------------------------------------------------------------------------------------


def load_seconds(
    fabric: float, memory: float, nbytes: float = 1 * GB, node: float = 1e4, chunk: str = "4 KiB"
) -> float:
    """Return what it takes when each of 256 GPUs loads so many bytes; bandwidths in GB/s.

    The paper does not say how fast a node's links to the switches are. 10 TB/s are more than any of the sweep needs.
    """
    pool = {
        "groups": GROUPS,
        "switches": SWITCHES,
        "capacity": "1 TB",
        "bandwidth": fabric * GB,
        "node_bandwidth": node * GB,
        "group_bandwidth": memory * GB,  # that of the group itself is what limits it
        "memory_bandwidth": memory * GB,
        "chunk": chunk,
    }
    nodes = {"topology": "switch", "bandwidth": "1 TB/s", "gpus_per_node": GPUS // NODES, "gpus": GPUS}
    system = Topology.from_dict({**nodes, "inter_node": {"bandwidth": "100 GB/s"}, "pool": pool})
    env = simpy.Environment()
    env.run(AnalyticalNetwork(env, system).transfer("pool0", 0, nbytes))
    return float(env.now)


def sweep(nbytes: float = 1 * GB) -> tuple[tuple[int, int], float]:
    """Return the least bandwidths with which loads take within 1% of the shortest, and how many times the baseline's speed."""
    times = {point: load_seconds(*point, nbytes) for point in product(FABRIC, MEMORY)}
    near = [point for point, seconds in times.items() if seconds <= 1.01 * min(times.values())]
    best = min(near, key=lambda point: (point[1], point[0]))
    return best, times[BASELINE] / times[best]


def step_speedup(loads: float, share: float) -> float:
    """Return how much shorter a step is whose loads, ``share`` of it, are so many times as fast."""
    return 1 / (1 - share + share / loads)


def _pool() -> list[Row]:
    best, loads = sweep()
    share = (1 - 1 / PUBLISHED_SPEEDUP) / (1 - 1 / loads)
    found = step_speedup(loads, share)
    own = 1 * GB / (BASELINE[1] * GB)  # ZeRO-Infinity: each GPU has the memory of one group for itself
    ahead = load_seconds(*BASELINE) / own - 1
    return [
        Row(f"the sweep's best is {best[0]} and {best[1]} GB/s", "ASTRA-sim 2.0, Table V", 1, float(best != BEST), 0.0),
        Row(
            f"loads are {loads:.2f} times as fast; a step of which they are {share:.1%}: {found:.1f} times",
            "ASTRA-sim 2.0, V-B, 4.6 times",
            1,
            relative(loads, PUBLISHED_SPEEDUP),
            0.1,
        ),
        Row(f"ZeRO-Infinity is {ahead:.1%} ahead of the pool", "ASTRA-sim 2.0, V-B, 0.1%", 1, abs(ahead - 1e-3), 1e-3),
    ]


def deepspeed_steps() -> Iterator[tuple[str, float, float]]:
    """Yield each published configuration of Llama-7B, its samples a second, and ours on a DGX-A100, of equal NVLink domains."""
    for parallel, recompute, offload, batch, published in LLAMA_7B:
        result = triosim.simulate(
            *("llama-2-7b", parallel),
            **{"gpus": 8, "gpu": "A100-SXM-80GB", "topology": "dgx-a100", "seq": 4096, "micro_batch_size": batch},
            **{"micro_batches": 8 // batch, "optimizer": "master-adamw", "stack": "deepspeed"},
            **{"recompute": recompute, "offload": offload},
        )
        yield f"{parallel}, micro-batch {batch}, recompute {recompute}, {offload}", published, 64 / result.step_time_s


def main() -> None:
    _, loads = sweep()
    print(
        f"256 GPUs load from 256 groups behind 16 switches: {BEST} GB/s are {loads:.2f} times as fast as {BASELINE}\n"
    )
    print("| loads' share of the baseline's step | the step's speed-up |\n|--:|--:|")
    for share in (0.5, 0.8, 0.9, 0.95, 0.979, 0.99, 1.0):
        print(f"| {100 * share:.1f}% | {step_speedup(loads, share):.2f} |")
    print("\n| GB/s of a node to each switch | baseline, ms for 1 GB | best, ms | speed-up |\n|--:|--:|--:|--:|")
    for node in (100, 200, 400, 1000, 10000):
        first, second = (1e3 * load_seconds(*point, node=node) for point in (BASELINE, BEST))
        print(f"| {node} | {first:.2f} | {second:.2f} | {first / second:.2f} |")
    print("\n| bytes a GPU loads, chunk | the pool behind ZeRO-Infinity |\n|---|--:|")
    for nbytes, chunk in product((25e6, 100e6, 1e9), ("4 KiB", "64 KiB", "1 MiB")):
        behind = load_seconds(*BASELINE, nbytes, chunk=chunk) / (nbytes / (BASELINE[1] * GB)) - 1
        print(f"| {nbytes / 1e6:.0f} MB, {chunk} | {behind:.2%} |")
    print("\n| Llama-7B on eight A800, DeepSpeed 0.14.2 | published, samples/s | here |\n|---|--:|--:|")
    for case, published, found in deepspeed_steps():
        print(f"| {case} | {published:.2f} | {found:.2f} |")


if __name__ == "__main__":
    main()
