"""Usual changes of a job, each of one option: sizes of parallelisms, micro-batches, sharding, and its other options.

A change keeps the GPUs and the global batch: data parallelism takes the GPUs that the others leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triosim.configuration_search.advice.option_changes import of_options
from triosim.launch_files.job import OPTION, REPLICATED, Job

Settings = dict[str, Any]

#: What a pipeline, tensor parallelism and others have of their own.
OF_AXIS: Mapping[str, tuple[str, ...]] = {
    "pp": ("schedule", "virtual_stages", f"{OPTION}stages", f"{OPTION}sends"),
    "tp": (
        "tp_style",
        "sequence_parallel",
        f"{OPTION}overlap",
        f"{OPTION}embedding_gradient",
        f"{OPTION}async_allreduce",
    ),
    "cp": (f"{OPTION}cp",),
    "ep": ("ep_transport", "ep_overlap", f"{OPTION}load", f"{OPTION}capacity"),
}
_OF_DATA = (
    *("bucket_size", "first_bucket_size", f"{OPTION}reshard", f"{OPTION}reduce", f"{OPTION}unit", f"{OPTION}prefetch"),
    *(f"{OPTION}parameter_dtype", f"{OPTION}shard_dtype"),
)
#: A pipeline of more GPUs is no usual change: Llama 3 405B was trained with 16 (Grattafiori et al. 2024, section 3.3.2).
_MOST_STAGES = 16
#: Sequences are divided from as many tokens on, as in a search.
_LONG = 16384


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an ``option``, in words (``shown``); ``apply`` returns a changed job's settings, None where it cannot be."""

    option: str
    shown: str
    apply: Callable[[Job], Settings | None]


def changes(job: Job, node: int) -> Iterator[Change]:
    """Yield the changes of a job on nodes of so many GPUs, in both directions of each option."""
    yield from _of_sizes(job, node)
    for samples in (job.micro_batch_size * 2, job.micro_batch_size // 2):
        if samples >= 1:
            said = f"micro-batch size {job.micro_batch_size} -> {samples}"
            yield Change("micro_batch_size", said, _with_micro_batch(samples))
    data = next((name for name in REPLICATED if name in job.settings), None)
    for name in ("ddp", "zero1", "fsdp"):
        if data not in (None, name):
            yield Change("data_parallel", f"{data} -> {name}", _sharded_as(str(data), name))
    for change in of_options(job, data):
        yield Change(change.option, change.shown, _with(change.values))


def _of_sizes(job: Job, node: int) -> Iterator[Change]:
    long = job.size("cp") > 1 or (job.settings.get("seq") or 0) >= _LONG
    experts = job.model.size("experts") or 1
    for axis, most in (("tp", node), ("pp", _MOST_STAGES), ("cp", node if long else 1), ("ep", experts)):
        for ranks in (job.size(axis) * 2, job.size(axis) // 2):
            if 1 <= ranks <= most:
                yield Change(axis, f"{axis} {job.size(axis)} -> {ranks}", _resized(axis, ranks))
    whole = job.size("fsdp", "ddp")
    if "fsdp" in job.settings and 1 < node < whole and whole % node == 0:
        for shared in (whole, node):
            if shared != job.size("fsdp"):
                said = "in each node" if shared == node else "over all"
                values = {"fsdp": shared, "ddp": whole // shared if shared < whole else None}
                yield Change("shards", f"parameters are shared {said}: fsdp={shared}", _with(values))


def _with(values: Mapping[str, Any]) -> Callable[[Job], Settings | None]:
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
        for name in OF_AXIS[axis] if ranks == 1 else ():
            settings.pop(name, None)
        if axis == "pp" and ranks > 1:
            settings.setdefault("schedule", "1f1b")
        if axis == "ep":  # divides the ranks of data parallelism
            return {name: value for name, value in settings.items() if name != axis or ranks > 1}
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
