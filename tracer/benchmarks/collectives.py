"""Measures collectives with torch.distributed, between the processes that a launcher such as torchrun has started.

Sizes are those of nccl-tests: the larger side in bytes. A time is that of the slowest rank, the mean over calls that follow
each other, after some that do not count. With ``overlap`` they are measured beside matrix products too. The first rank writes
a row for each collective and size, as ``triosim calibrate network`` and ``evaluate`` read them, and the whole file after each,
so that an interrupted measurement goes on.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim.compute import csv_table
from triosim.errors import OptionError, TriosimError, nearest
from triosim.output_files import check_writable, writing_text
from triosim.tracer.benchmarks.background_products import BackgroundProducts
from triosim.tracer.benchmarks.software import versions
from triosim.tracer.pytorch_version import require_torch

COLUMNS = (
    *("gpu", "gpus", "nodes", "collective", "bytes", "time_us", "calls", "software"),
    *("compute_slowdown", "collective_slowdown"),
)
_WARM_UP, _LEAST_CALLS, _MOST_CALLS, _ENOUGH_SECONDS = 3, 5, 200, 0.1
_BYTES = 4  # of a float32
_SLOWDOWNS = ("compute_slowdown", "collective_slowdown")
#: Beside products, collectives from this size on are run for so many seconds.
_LEAST_BESIDE, _BESIDE_SECONDS = 1 << 20, 0.3

#: Calls a collective on tensors of ``count`` numbers, of which each of ``world`` ranks has a share.
Call = Callable[[], Any]


@dataclass(frozen=True)
class CollectivesPlan:
    """The collectives to measure, from ``least`` to ``most`` bytes, each size twice the one before.

    ``overlap``: those from 1 MiB on also beside products, which slow them and are slowed.
    """

    collectives: Sequence[str] = ()
    least: int = 1 << 10
    most: int = 1 << 30
    overlap: bool = False


def measure(plan: CollectivesPlan, path: str) -> int:
    """Measure what is not in the table at ``path`` yet; return how many rows it has.

    Raises ``OptionError`` outside of a launcher, for an unknown collective and for sizes that are none.
    """
    require_torch("measuring")
    import torch
    import torch.distributed as dist

    names = _chosen(plan)
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        launched = "torchrun --nproc-per-node 8 --no-python triosim calibrate collectives -o FILE"
        raise OptionError("collectives need several processes", fix=f"start them: {launched}")
    check_writable(path)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        return _measured(torch, dist, names, plan, path)
    finally:
        dist.destroy_process_group()


def _measured(torch: Any, dist: Any, names: Sequence[str], plan: CollectivesPlan, path: str) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    world, first = dist.get_world_size(), dist.get_rank() == 0
    about = {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "gpus": str(world),
        "nodes": str(max(world // int(os.environ.get("LOCAL_WORLD_SIZE", world)), 1)),
        "software": versions(torch, device),
    }
    rows = [_read(path) if first else []]
    dist.broadcast_object_list(rows, src=0)
    found = {_key(row): row for row in rows[0]}
    for name, nbytes in _order(names, plan, world):
        beside = plan.overlap and nbytes >= _LEAST_BESIDE
        row = {**about, "collective": name, "bytes": str(nbytes)}
        known = found.get(_key(row))
        if known is not None and (known["compute_slowdown"] or not beside):
            continue
        call = _call(torch, dist, name, nbytes // _BYTES, device)
        seconds, calls = _time(torch, dist, call, device)
        row |= {"time_us": f"{1e6 * seconds:.6g}", "calls": str(calls), **dict.fromkeys(_SLOWDOWNS, "")}
        if beside:
            factors = _slowdowns(torch, dist, call, device, seconds)
            row |= {name: f"{factor:.4g}" for name, factor in zip(_SLOWDOWNS, factors, strict=True)}
        found[_key(row)] = row
        if first:
            _write(list(found.values()), path)
    return len(found)


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("gpu", "gpus", "nodes", "collective", "bytes"))


def _order(names: Sequence[str], plan: CollectivesPlan, world: int) -> Iterator[tuple[str, int]]:
    """Yield the collectives and sizes of a plan; each rank's share is of whole numbers."""
    for name in names:
        nbytes = plan.least
        while nbytes <= plan.most:
            yield name, max(nbytes // (_BYTES * world), 1) * _BYTES * world
            nbytes *= 2


def _slowdowns(torch: Any, dist: Any, call: Call, device: str, alone: float) -> tuple[float, float]:
    """Return by how many times longer products take beside a collective, and it beside them, on the slowest rank."""
    calls = max(round(_BESIDE_SECONDS / alone), _LEAST_CALLS)
    dist.broadcast(shared := torch.tensor([calls], device=device), src=0)
    with BackgroundProducts(torch, device) as products:
        undisturbed = products.rate(lambda: time.sleep(_BESIDE_SECONDS))
        beside: list[float] = []
        rate = products.rate(lambda: beside.append(_seconds(torch, dist, call, device, int(shared.item()))))
    slowest = torch.tensor([undisturbed / rate, beside[0] / alone], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    computation, collective = slowest.tolist()
    return max(computation, 1.0), max(collective, 1.0)


def _call(torch: Any, dist: Any, name: str, count: int, device: str) -> Call:
    """Return a call of a collective whose larger side has ``count`` numbers."""
    world = dist.get_world_size()
    whole, share = torch.rand(count, device=device), torch.rand(count // world, device=device)
    other = torch.empty_like(whole)
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in PyTorch 2.13
    calls: Mapping[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: all_gather(other, share),
        "reduce_scatter": lambda: reduce_scatter(share, whole),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "broadcast": lambda: dist.broadcast(whole, src=0),
    }
    return calls[name]


def _time(torch: Any, dist: Any, call: Call, device: str) -> tuple[float, int]:
    """Return the seconds of a call on the slowest rank, and how many were made; all ranks make as many."""
    for _ in range(_WARM_UP):
        call()
    seconds = _seconds(torch, dist, call, device, _LEAST_CALLS)
    calls = min(max(round(_ENOUGH_SECONDS / seconds), _LEAST_CALLS), _MOST_CALLS)
    return _seconds(torch, dist, call, device, calls), calls


def _seconds(torch: Any, dist: Any, call: Call, device: str, calls: int) -> float:
    synchronize = torch.cuda.current_stream().synchronize if device == "cuda" else (lambda: None)
    dist.barrier()
    synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize()
    slowest = torch.tensor([(time.perf_counter() - started) / calls], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())


def _chosen(plan: CollectivesPlan) -> list[str]:
    known = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
    for name in plan.collectives:
        if name not in known:
            raise OptionError(f"'{name}' is not measured", where="--collectives", fix=nearest(name, known))
    if plan.least > plan.most:
        raise OptionError("the least bytes are more than the most", where="--least", fix="give a smaller size")
    return list(dict.fromkeys(plan.collectives)) or list(known)


def _read(path: str) -> list[dict[str, str]]:
    """Return the rows of a table that was begun. Raises ``TriosimError`` for another file."""
    if not Path(path).is_file() or not Path(path).stat().st_size:
        return []
    sheet = csv_table.read(path)
    if tuple(sheet.header) not in (COLUMNS, COLUMNS[: -len(_SLOWDOWNS)]):
        raise TriosimError("is another table", where=path, fix=f"its columns would be {', '.join(COLUMNS)}")
    missing = dict.fromkeys(_SLOWDOWNS, "")
    return [{**missing, **dict(zip(sheet.header, cells, strict=True))} for _, cells in sheet.rows]


def _write(rows: Sequence[Mapping[str, str]], path: str) -> None:
    with writing_text(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[name] for name in COLUMNS] for row in rows)
