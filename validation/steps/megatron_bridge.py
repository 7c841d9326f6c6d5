"""Training steps of Megatron-Bridge on H100s to GB300s, as NVIDIA publishes them with each release (Apache-2.0).

Megatron-Bridge's recipes (its scripts/performance/configs, from release 26.06 on src/megatron/bridge/perf_recipes) balance
tokens over experts by force and carry them by HybridEP, to which they give 32 multiprocessors, or by NCCL, as their
``moe_token_dispatcher_type`` says. Experts are divided over replicas and tensor parallel GPUs together; here, over as many of
the replicas as there are. Racks of 72 GPUs are used in parts of 64. What is recomputed is not printed: nothing is taken to be.
Values in parentheses are of another precision than the row's.

Recipes of mixtures in MXFP8 run a whole step as one CUDA graph from release 26.06 on, GPT-OSS's from 26.08 on
(``_enable_hybridep_full_iteration_mxfp8``): nothing waits for launches, and ``overlap_moe_expert_parallel_comm``, for which the
stages of a pipeline have to be interleaved, runs passes side by side. Those of Qwen3 235B on H100s set the latter in each
release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from validation.steps.command import CommandFormat
from validation.steps.megatron_command import Division, division_of
from validation.steps.nemo_models import (
    System,
    check_whole_training,
    model_of,
    nemo_command,
    recipe_of,
    stack_of,
    system_of,
    without_parentheses,
)
from validation.steps.rows import Record, Row

_HYBRIDEP_SMS = 32
#: Models whose recipes take NCCL's all-to-all instead (workload_base_configs.py), on which systems and stacks.
_ALL_TO_ALL: Mapping[str, Callable[[System, str], bool]] = {
    "gpt-oss-120b": lambda _, stack: stack == "megatron",
    "qwen3-235b-a22b": lambda system, _: system.rack is None,
}
#: Models whose recipes in MXFP8 run a step as one CUDA graph, and from which release on (year, month).
_WHOLE_GRAPHS: Mapping[str, tuple[int, int]] = {
    "qwen3-30b-a3b": (26, 6),
    "qwen3-235b-a22b": (26, 6),
    "deepseek-v3": (26, 6),
    "gpt-oss-120b": (26, 8),
}


class MegatronBridge(CommandFormat):
    """Rows of Megatron-Bridge's releases."""

    name = "megatron-bridge"
    columns = (
        *("release", "phase", "model", "system", "gpus", "precision", "global_batch", "micro_batch", "seq_len"),
        *("fsdp", "tp", "pp", "cp", "vp", "ep", "step_time_s"),
    )
    tables = ("steps/megatron_bridge.csv",)
    sample, most_passes = 24, 250
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.15}

    def read(self, record: Record) -> Row:
        """One row a record."""
        record = without_parentheses(record)
        check_whole_training(record, "phase")
        model, system = model_of(record, "model"), system_of(record, record.text("system"))
        gpus, samples, micro_batch = (record.whole(name) for name in ("gpus", "global_batch", "micro_batch"))
        division, stack = division_of(record, gpus), stack_of(record, record.text("precision"))
        command = nemo_command(
            model,
            division,
            stack,
            products=recipe_of(record.text("precision")),
            micro_batch=micro_batch,
            micro_batches=division.micro_batches(record, samples, micro_batch),
            gpu=system.gpu,
            topology=system.topology(gpus),
            seq=record.whole("seq_len"),
            **(
                _transport(model.name, system, stack) | _overlap(record, model.name, division)
                if division.ep > 1
                else {}
            ),
        )
        label = f"{record.text('model')} {division.label} batch={samples}/{micro_batch} {record.text('precision')}"
        label += f" {record.text('system')} {record.text('release')}"
        return Row(
            label, model.name, record.number("step_time_s"), "s", command, gpu=system.gpu, framework="Megatron-Bridge"
        )


def _transport(model: str, system: System, stack: str) -> dict[str, Any]:
    """Return the options of what carries tokens to experts."""
    if model in _ALL_TO_ALL and _ALL_TO_ALL[model](system, stack):
        return {"ep_transport": None}
    return {"ep_transport": "hybridep", "option": (f"deepep_sms={_HYBRIDEP_SMS}",)}


def _overlap(record: Record, model: str, division: Division) -> dict[str, Any]:
    """Return the options of a step in one CUDA graph, and of passes that run side by side."""
    if division.pp > 1 and division.chunks == 1:
        return {}
    year, month, *_ = (int(one) for one in record.text("release").split()[0].split("."))
    system, precision = record.text("system"), recipe_of(record.text("precision"))
    if precision == "mxfp8" and system != "DGX-B200" and (year, month) >= _WHOLE_GRAPHS.get(model, (math.inf,)):
        return {"ep_overlap": True, "host_overhead": "none"}
    return {"ep_overlap": True} if (model, system) == ("qwen3-235b-a22b", "DGX-H100") else {}


FORMATS = (MegatronBridge(),)
