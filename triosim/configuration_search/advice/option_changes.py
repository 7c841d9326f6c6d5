"""Usual changes of the options of a job that are no sizes: recomputation, offload, the pipeline's schedule, overlap, buckets.

An option that a job sets away from its default is left out once. What changes numbers is never advised: dtypes, fewer bits,
how the tokens of experts are routed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triosim.config.offload import TIERS, Offload
from triosim.config.stacks import STACKS
from triosim.launch_files.job import OPTION, Job, offload_text
from triosim.units import format_bytes

_POLICIES = ("none", "selective", "save=mm/2,attention", "checkpoint", "full")
#: What the keys of frameworks offload.
_OFFLOADED = ("optimizer=host", "optimizer=host,parameters=host")
#: Options of parts that change numbers, or have changes of their own.
_NUMERIC = frozenset(f"{OPTION}{name}" for name in ("shard_dtype", "parameter_dtype", "load", "capacity"))
_OWN = frozenset(f"{OPTION}{name}" for name in ("reshard", "overlap", "cp", "stages", "sends", "embedding_gradient"))


@dataclass(frozen=True, slots=True)
class OptionChange:
    """A change of an ``option`` in words, and the settings that it makes; None leaves one out."""

    option: str
    shown: str
    values: Mapping[str, Any]


def of_options(job: Job, data: str | None) -> Iterator[OptionChange]:
    """Yield the changes of a job whose replicas are those of ``data``, in both directions of each option."""
    policy = job.get("recompute")
    for other in _POLICIES:
        if other != policy:
            values = {"recompute": None if other == "none" else other}
            yield OptionChange("recompute", f"recompute {policy} -> {other}", values)
    yield from _of_offload(job)
    yield from _of_pipeline(job)
    yield from _of_tensors(job)
    yield from _of_tokens(job)
    yield from _of_replicas(job, data)
    yield from _of_step(job)


def _of_offload(job: Job) -> Iterator[OptionChange]:
    """Yield what is offloaded less, or more: each part that is not on the GPU, all of them, or what frameworks offload."""
    now = str(job.settings.get("offload") or "none")
    parts = Offload.of(now)
    held = {name: getattr(parts, name) for name in TIERS}
    removed = [
        name for name in TIERS if held[name] and (name != "optimizer" or held["parameters"] is None)
    ]  # the CPU updates these
    fewer = [offload_text(Offload(**{**held, name: None})) for name in removed]
    for other in dict.fromkeys(["none", *(one or "none" for one in fewer), *_OFFLOADED]):
        if other != now:
            values = {"offload": None if other == "none" else other}
            yield OptionChange("offload", f"offload {now} -> {other}", values)


def _of_pipeline(job: Job) -> Iterator[OptionChange]:
    if job.size("pp") == 1:
        return
    now = job.settings.get("virtual_stages") or 1
    for count in (1, 2, 4):
        if count != now:
            several = {"schedule": "interleaved", "virtual_stages": count}
            chosen = several if count > 1 else {"schedule": "1f1b", "virtual_stages": None}
            yield OptionChange("virtual_stages", f"virtual stages -> {count}", chosen)
    schedule = job.get("schedule")
    for other in ("1f1b", "gpipe"):
        if now == 1 and other != schedule:
            yield OptionChange("schedule", f"schedule {schedule} -> {other}", {"schedule": other})


def _of_tensors(job: Job) -> Iterator[OptionChange]:
    if job.size("tp") == 1:
        return
    by_sequence = not job.get("sequence_parallel")
    said = "with" if by_sequence else "without"
    yield OptionChange("sequence_parallel", f"{said} sequence parallelism", {"sequence_parallel": by_sequence or None})
    overlapped = job.get(f"{OPTION}overlap") == "ring"
    if job.get("sequence_parallel") or overlapped:
        said, value = ("without", None) if overlapped else ("with", "ring")
        yield OptionChange("overlap", f"{said} overlapped tensor parallelism", {f"{OPTION}overlap": value})


def _of_tokens(job: Job) -> Iterator[OptionChange]:
    if job.size("cp") > 1:
        gathered = job.get(f"{OPTION}cp") == "all-gather"
        said = "a ring" if gathered else "an all-gather"
        yield OptionChange("cp exchange", f"cp by {said}", {f"{OPTION}cp": None if gathered else "all-gather"})
    if job.size("ep") > 1:
        now = job.get("ep_transport")
        for other in ("nccl", "deepep"):
            if other != now:
                yield OptionChange("ep_transport", f"experts' tokens by {now} -> {other}", {"ep_transport": other})
        overlapped = bool(job.get("ep_overlap"))
        said = "without" if overlapped else "with"
        yield OptionChange("ep_overlap", f"{said} overlapped experts", {"ep_overlap": None if overlapped else True})


def _of_replicas(job: Job, data: str | None) -> Iterator[OptionChange]:
    if data == "fsdp" and job.size("pp") == 1:
        kept = job.get(f"{OPTION}reshard") == "no"
        said = "parameters are freed after the forward pass" if kept else "parameters are kept after the forward pass"
        yield OptionChange("reshard", said, {f"{OPTION}reshard": None if kept else "no"})
    if data in ("ddp", "zero1", "zero2"):
        now = int(job.get("bucket_size"))
        for nbytes in (now * 4, now // 4):
            values = {"bucket_size": nbytes}
            if "first_bucket_size" in job.settings:
                values["first_bucket_size"] = nbytes
            yield OptionChange("bucket_size", f"buckets of {format_bytes(now)} -> {format_bytes(nbytes)}", values)


def _of_step(job: Job) -> Iterator[OptionChange]:
    stack = job.settings.get("stack")
    if stack in ("eager", "compiled"):
        other, said = ("compiled", "compiled") if stack == "eager" else ("eager", "not compiled")
        optimizer = job.get("optimizer") or STACKS[stack].optimizer
        yield OptionChange("stack", said, {"stack": other, "optimizer": optimizer})
    if job.settings.get("optimizer") == "adamw":
        yield OptionChange("optimizer", "optimizer adamw -> fused-adamw", {"optimizer": "fused-adamw"})
    for name in ("attention", *(one for one in job.settings if one.startswith(OPTION))):
        if name in job.settings and name not in _NUMERIC and name not in _OWN:
            shown = name.removeprefix(OPTION)
            yield OptionChange(shown, f"{shown} {job.settings[name]} -> its default", {name: None})
