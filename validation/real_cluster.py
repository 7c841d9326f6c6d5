"""Two real ranks on one machine, against their prediction from a capture of one.

Two gloo ranks in network namespaces of their own, joined by a link that ``tc`` holds to a rate; each rank has one thread. The
link's bandwidth and latency are measured by messages from one rank to the other, the model's operators by a capture of one
process that knows of no other; DDP, tensor-parallel (Megatron) and pipeline (GPipe) steps are then measured and predicted.
Computation is replaced by sleeps of known length, since two cores shared with others do not compute evenly; apart from that, a
DDP step of real computation is shown.

``python -m validation.real_cluster`` needs root (for the namespaces), Linux with ``ip`` and ``tc``, and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from validation.report import DataAbsent, Row, relative

#: Minutes, as root: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

RATES = ("1gbit", "200mbit")
#: What is said to hold for sleeping computation; of real computation on shared cores nothing is said.
CLAIM = 0.05
STEPS, WARM_UP = 9, 3
MICRO_BATCHES = 4
BUCKET = 4 * 2**20
#: How nice ranks and captures are to what else runs on the machine: not at all.
PRIORITY = -15
SPACES = ("triosim0", "triosim1")


class Case(NamedTuple):
    """How one step is parallelised, and what of it is predicted with."""

    name: str
    model: str
    options: dict[str, Any]


CASES = (
    Case("ddp", "layers", {"parallel": "ddp", "bucket_size": BUCKET, "first_bucket_size": BUCKET}),
    Case("tp", "pairs", {"parallel": "tp", "tp_style": "megatron"}),
    Case("pp", "stages", {"parallel": "pp", "micro_batches": MICRO_BATCHES, "schedule": "gpipe"}),
    Case("ddp computing", "computing", {"parallel": "ddp", "bucket_size": BUCKET, "first_bucket_size": BUCKET}),
)


class Found(NamedTuple):
    """One case on one link, in seconds: the measured steps' median and their range, and the prediction."""

    case: str
    rate: str
    measured: float
    least: float
    most: float
    predicted: float
    alone: float


# The models, alike for the capture of one rank and for the two ranks.


@cache
def sleeping() -> Callable[[Any, float], Any]:
    """Return an operator that copies its tensor and sleeps so long a sample, twice as long in the backward pass."""
    import torch

    @torch.library.custom_op("cluster::sleep", mutates_args=(), schema="(Tensor x, float seconds) -> Tensor")
    def sleep(x: torch.Tensor, seconds: float) -> torch.Tensor:
        time.sleep(seconds * x.shape[0])
        return x.clone()

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.seconds = inputs[1]

    sleep.register_autograd(lambda ctx, gradient: (sleep(gradient, 2.0 * ctx.seconds), None), setup_context=remember)
    return sleep


def build(model: str) -> tuple[Any, Any]:
    """Return a model and its input: 8 layers that sleep 10 ms a batch forward and 20 ms backward, or that compute."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    sleep = sleeping()

    class Sleep(nn.Module):
        def __init__(self, batch: int) -> None:
            super().__init__()
            self.seconds = 0.010 / batch

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sleep(x, self.seconds)

    class Scale(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    if model == "layers":  # 4 MiB of gradients each
        made = [nn.Sequential(Sleep(4), nn.Linear(1024, 1024, bias=False)) for _ in range(8)]
        return nn.Sequential(*made), torch.randn(4, 1024)
    if model == "pairs":  # 2 MiB of activations to reduce after each
        made = [
            nn.Sequential(Sleep(512), nn.Linear(1024, 32, bias=False), nn.ReLU(), nn.Linear(32, 1024, bias=False))
            for _ in range(8)
        ]
        return nn.Sequential(*made), torch.randn(512, 1024)
    if model == "stages":  # 2 MiB of activations between two of them
        return nn.Sequential(*[nn.Sequential(Sleep(32), Scale(16384)) for _ in range(8)]), torch.randn(32, 16384)
    return nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(8)]), torch.randn(256, 1024)


def captured(model: str) -> Any:
    """Return the trace of a step of one rank alone."""
    import torch

    from triosim.tracer import capture

    torch.set_num_threads(1)
    network, x = build(model)
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    with capture(network, optimizer, skip=2, steps=5) as block:
        for _ in range(14):
            optimizer.zero_grad()
            network(x).mean().backward()
            optimizer.step()
    return block.trace


# The ranks.


def work(case: str, folder: str) -> None:
    """Be one rank: run a case's steps and write their times."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = link() if case == "link" else steps(next(one for one in CASES if one.name == case))
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, found)
    if dist.get_rank() == 0:
        slowest = [max(pair) for pair in zip(*everyone, strict=True)]
        Path(folder, f"{case}.json").write_text(json.dumps(slowest), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def link() -> list[float]:
    """Return the seconds of a message of 4 B and of 16 MiB, one way."""
    import torch
    import torch.distributed as dist

    medians = []
    for nbytes, rounds in ((4, 51), (16 * 2**20, 9)):
        message, times = torch.zeros(nbytes // 4), []
        for _ in range(rounds):
            dist.barrier()
            began = time.perf_counter()
            for turn in (0, 1):
                if dist.get_rank() == turn:
                    dist.send(message, 1 - turn)
                else:
                    dist.recv(message, turn)
            times.append((time.perf_counter() - began) / 2.0)
        medians.append(median(times[2:]))
    return medians


def steps(case: Case) -> list[float]:
    """Return the seconds of each step of this rank."""
    import torch
    import torch.distributed as dist

    network, x = build(case.model)
    make = {"ddp": data_parallel, "tp": tensor_parallel, "pp": pipelined, "ddp computing": data_parallel}[case.name]
    step, parameters = make(network, x)
    optimizer = torch.optim.SGD(parameters, 0.01)
    times = []
    for _ in range(WARM_UP + STEPS):
        optimizer.zero_grad()
        dist.barrier()
        began = time.perf_counter()
        step()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return times[WARM_UP:]


def data_parallel(network: Any, x: Any) -> tuple[Callable[[], Any], Any]:
    from torch.nn.parallel import DistributedDataParallel

    wrapped = DistributedDataParallel(network, bucket_cap_mb=BUCKET / 2**20)
    return lambda: wrapped(x).mean().backward(), wrapped.parameters()


def tensor_parallel(network: Any, x: Any) -> tuple[Callable[[], Any], Any]:
    """Columns of the first product of each pair, rows of the second: an all-reduce forward, and one backward."""
    import torch
    import torch.distributed as dist
    from torch import nn

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            gradient = gradient.contiguous()
            dist.all_reduce(gradient)
            return gradient

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    rank, half = dist.get_rank(), 16
    mine = slice(rank * half, (rank + 1) * half)
    for _, first, _, second in network:
        first.weight = nn.Parameter(first.weight[mine].detach().clone())
        second.weight = nn.Parameter(second.weight[:, mine].detach().clone())

    def forward() -> Any:
        values = x
        for sleep, first, between, second in network:
            values = Leave.apply(second(between(first(Enter.apply(sleep(values))))))
        return values

    return lambda: forward().mean().backward(), network.parameters()


def pipelined(network: Any, x: Any) -> tuple[Callable[[], Any], Any]:
    """GPipe, with every receive asked for ahead, as hosts of GPUs do: gloo sends nothing before it is asked for."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    part = network[4 * rank : 4 * rank + 4]
    pieces = x.chunk(MICRO_BATCHES)

    def step() -> None:
        arriving = [torch.empty_like(piece) for piece in pieces]
        works = [dist.irecv(piece, 1 - rank) for piece in arriving]
        inputs, outputs, sent = [], [], []
        for piece, work, received in zip(pieces, works, arriving, strict=True):
            if rank:
                work.wait()
            inputs.append(received.requires_grad_() if rank else piece)
            outputs.append(part(inputs[-1]))
            if not rank:
                sent.append(dist.isend(outputs[-1].detach(), 1))
        for inner, output, work, gradient in zip(inputs, outputs, works, arriving, strict=True):
            if rank:
                output.mean().backward()
                sent.append(dist.isend(inner.grad, 0))
            else:
                work.wait()
                output.backward(gradient)
        for one in sent:
            one.wait()

    return step, part.parameters()


# The machine.


@contextmanager
def namespaces(rate: str) -> Iterator[None]:
    """Make two network namespaces joined by a link of a rate each way, and remove them at the end."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    remove()
    try:
        for space in SPACES:
            ip("netns", "add", space)
        ip("link", "add", "tri0", "netns", SPACES[0], "type", "veth", "peer", "name", "tri1", "netns", SPACES[1])
        for rank, space in enumerate(SPACES):
            ip("-n", space, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", f"tri{rank}")
            ip("-n", space, "link", "set", f"tri{rank}", "up")
            ip("-n", space, "link", "set", "lo", "up")
            shape = f"tc qdisc add dev tri{rank} root tbf rate {rate} burst 256kb latency 200ms"
            ip("netns", "exec", space, *shape.split())
        yield
    finally:
        remove()


def remove() -> None:
    for space in SPACES:
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def on_both(case: str, folder: str) -> list[float]:
    """Run a case on both ranks; return the longer of their two times of each step."""
    both_say([sys.executable, "-m", "validation.real_cluster", "--be", case, folder])
    found: list[float] = json.loads(Path(folder, f"{case}.json").read_text(encoding="utf-8"))
    return found


def both_say(command: Sequence[str]) -> list[str]:
    """Run a command as both ranks; return what each one prints."""
    ranks = []
    for rank, space in enumerate(SPACES):
        ours = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "10.77.0.1",
            "MASTER_PORT": "29533",
            "GLOO_SOCKET_IFNAME": f"tri{rank}",
            "OMP_NUM_THREADS": "1",
        }
        environment = os.environ | ours | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
        inside = ["ip", "netns", "exec", space, *command]
        ranks.append(subprocess.Popen(inside, env=environment, stdout=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(f"a rank of {' '.join(command)} failed")
    return said


def measured(rates: tuple[str, ...] = RATES) -> list[Found]:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise DataAbsent(f"{error.name} is not installed") from None
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        raise DataAbsent("it makes network namespaces, for which it needs root, ip and tc")
    import triosim

    os.nice(PRIORITY)
    found: list[Found] = []
    traces = {case.model: captured(case.model) for case in CASES}
    for rate in rates:
        with namespaces(rate), tempfile.TemporaryDirectory() as folder:
            short, long = on_both("link", folder)
            bandwidth = 16 * 2**20 / (long - short)
            topology = f"ring(2, bandwidth={bandwidth:.0f} B/s, latency={short:.6f} s)"
            print(f"{rate}: {topology}", file=sys.stderr)
            for case in CASES:
                trace = traces[case.model]
                result = triosim.simulate(trace, gpus=2, topology=topology, copy_input=False, **case.options)
                times = on_both(case.name, folder)
                alone = sum(operator.seconds for operator in trace.operators)
                found.append(Found(case.name, rate, median(times), min(times), max(times), result.step_time_s, alone))
                print(line(found[-1]), flush=True)
    return found


def line(one: Found) -> str:
    return (
        f"{one.case:14} {one.rate:8} measured {one.measured * 1e3:7.1f} ms ({one.least * 1e3:.1f} to"
        f" {one.most * 1e3:.1f})  predicted {one.predicted * 1e3:7.1f}  {one.predicted / one.measured - 1.0:+.1%}"
        f"  (one rank alone: {one.alone * 1e3:.1f})"
    )


def rows() -> list[Row]:
    found = measured()
    return [
        Row(
            f"{case.name} step of two ranks that sleep",
            "gloo over shaped links",
            len(RATES),
            max(relative(one.predicted, one.measured) for one in found if one.case == case.name),
            CLAIM,
        )
        for case in CASES
        if case.model != "computing"
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m validation.real_cluster", description=__doc__)
    parser.add_argument("--be", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--rate", action="append", help="of the link, as tc writes it; several times for several")
    options = parser.parse_args()
    if options.be:
        work(*options.be)
        return 0
    try:
        found = measured(tuple(options.rate or RATES))
    except DataAbsent as absent:
        print(f"real_cluster: skipped, {absent}", file=sys.stderr)
        return 2
    asleep = [one for one in found if one.case != "ddp computing"]
    return 0 if all(relative(one.predicted, one.measured) <= CLAIM for one in asleep) else 1


if __name__ == "__main__":
    sys.exit(main())
