"""Usual changes of a job, each of one option: sizes of parallelisms, micro-batches, recomputation, sharding, compilation.

A change keeps the GPUs and the global batch: data parallelism takes the GPUs that the others leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triosim.launch_files.job import OPTION, REPLICATED, Job

Settings = dict[str, Any]

#: What a pipeline, tensor parallelism and fsdp have of their own.
_OF_AXIS = {
    "pp": ("schedule", "virtual_stages", f"{OPTION}stages", f"{OPTION}sends"),
    "tp": (
        "tp_style",
        "sequence_parallel",
        f"{OPTION}overlap",
        f"{OPTION}embedding_gradient",
        f"{OPTION}async_allreduce",
    ),
    "cp": (f"{OPTION}cp",),
}
_OF_DATA = (
    *("bucket_size", "first_bucket_size", f"{OPTION}reshard", f"{OPTION}reduce", f"{OPTION}unit", f"{OPTION}prefetch"),
    *(f"{OPTION}parameter_dtype", f"{OPTION}shard_dtype"),
)
#: A pipeline of more GPUs is no usual change: Llama 3 405B was trained with 16 (Grattafiori et al. 2024, section 3.3.2).
_MOST_STAGES = 16
_POLICIES = ("none", "selective", "save=mm/2,attention", "checkpoint", "full")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an ``option``, in words (``shown``); ``apply`` returns a changed job's settings, None where it cannot be."""

    option: str
    shown: str
    apply: Callable[[Job], Settings | None]


def changes(job: Job, node: int) -> Iterator[Change]:
    """Yield the changes of a job on nodes of so many GPUs."""
    for axis, most in (("tp", node), ("pp", _MOST_STAGES), ("cp", node if job.size("cp") > 1 else 1)):
        for ranks in (job.size(axis) * 2, job.size(axis) // 2):
            if 1 <= ranks <= most:
                yield Change(axis, f"{axis} {job.size(axis)} -> {ranks}", _resized(axis, ranks))
    for samples in (job.micro_batch_size * 2, job.micro_batch_size // 2):
        if samples >= 1:
            said = f"micro-batch size {job.micro_batch_size} -> {samples}"
            yield Change("micro_batch_size", said, _with_micro_batch(samples))
    data = next((name for name in REPLICATED if name in job.settings), None)
    for name in ("ddp", "zero1", "fsdp"):
        if data not in (None, name):
            yield Change("data_parallel", f"{data} -> {name}", _sharded_as(str(data), name))
    yield from _of_options(job, data)


def _of_options(job: Job, data: str | None) -> Iterator[Change]:
    policy = job.get("recompute")
    for other in _POLICIES:
        if other != policy:
            yield Change(
                "recompute", f"recompute {policy} -> {other}", _with(recompute=None if other == "none" else other)
            )
    if job.size("pp") > 1:
        for count in (1, 2, 4):
            if count != (job.settings.get("virtual_stages") or 1):
                several = {"schedule": "interleaved", "virtual_stages": count}
                chosen = several if count > 1 else {"schedule": "1f1b", "virtual_stages": None}
                yield Change("virtual_stages", f"virtual stages -> {count}", _with(**chosen))
    if job.size("tp") > 1:
        by_sequence = not job.get("sequence_parallel")
        said = "with" if by_sequence else "without"
        yield Change("sequence_parallel", f"{said} sequence parallelism", _with(sequence_parallel=by_sequence or None))
        overlapped = job.get(f"{OPTION}overlap") == "ring"
        if job.get("sequence_parallel") and not overlapped:
            yield Change("overlap", "with overlapped tensor parallelism", _with(**{f"{OPTION}overlap": "ring"}))
    if job.settings.get("stack") == "eager":
        yield Change("stack", "compiled", _with(stack="compiled", optimizer=None))
    if data == "fsdp" and job.size("pp") == 1:
        kept = job.get(f"{OPTION}reshard") == "no"
        said = "parameters are freed after the forward pass" if kept else "parameters are kept after the forward pass"
        yield Change("reshard", said, _with(**{f"{OPTION}reshard": None if kept else "no"}))


def _with(**values: Any) -> Callable[[Job], Settings | None]:
    """Return the change of settings to values; None leaves one out."""

    def apply(job: Job) -> Settings | None:
        found = {**job.settings, **values}
        return {name: value for name, value in found.items() if value is not None}

    return apply


def _with_micro_batch(samples: int) -> Callable[[Job], Settings | None]:
    return lambda job: _divided_batch({**job.settings, "micro_batch_size": samples}, job)


def _sharded_as(old: str, new: str) -> Callable[[Job], Settings | None]:
    def apply(job: Job) -> Settings | None:
        kept = {name: value for name, value in job.settings.items() if name not in (old, *_OF_DATA)}
        whole = {f"{OPTION}shard_dtype": job.get(f"{OPTION}shard_dtype")} if new == "fsdp" else {}
        return {new: job.settings[old], **kept, **{name: value for name, value in whole.items() if value is not None}}

    return apply


def _resized(axis: str, ranks: int) -> Callable[[Job], Settings | None]:
    """Return the change of a parallelism's size, with data parallelism on the GPUs that are left."""

    def apply(job: Job) -> Settings | None:
        settings = dict(job.settings)
        settings[axis] = ranks
        for name in _OF_AXIS[axis] if ranks == 1 else ():
            settings.pop(name, None)
        if axis == "pp" and ranks > 1:
            settings.setdefault("schedule", "1f1b")
        data = [name for name in REPLICATED if name in settings]
        others = math.prod(int(settings.get(name, 1)) for name in ("tp", "pp", "cp", *data[1:]))
        if job.gpus % others or len(data) > 2:
            return None
        settings[data[0] if data else "fsdp"] = job.gpus // others
        return _divided_batch({name: value for name, value in settings.items() if name != axis or ranks > 1}, job)

    return apply


def _divided_batch(settings: Mapping[str, Any], job: Job) -> Settings | None:
    """Return settings with as many micro-batches as the same global batch has."""
    replicas = math.prod(int(settings.get(name, 1)) for name in REPLICATED)
    share = replicas * int(settings["micro_batch_size"])
    if job.global_batch_size % share:
        return None
    return {**settings, "micro_batches": job.global_batch_size // share}
