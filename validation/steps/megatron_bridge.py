"""Training steps of Megatron-Bridge on H100s to GB300s, as NVIDIA publishes them with each release (Apache-2.0).

Its recipes balance tokens over experts by force; what else they set is in ``bridge_recipes``. Experts are divided over replicas
and tensor parallel GPUs together; here, over as many of the replicas as there are. Racks of 72 GPUs are used in parts of 64.
Values in parentheses are of another precision than the row's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from validation.steps.bridge_recipes import Recipe
from validation.steps.command import CommandFormat
from validation.steps.megatron_command import division_of
from validation.steps.nemo_models import (
    check_whole_training,
    model_of,
    nemo_command,
    recipe_of,
    stack_of,
    system_of,
    without_parentheses,
)
from validation.steps.rows import Record, Row

_HOPPER, _BLACKWELL = "H100", "B200 to GB300"


class MegatronBridge(CommandFormat):
    """Rows of Megatron-Bridge's releases."""

    name = "megatron-bridge"
    columns = (
        *("release", "phase", "model", "system", "gpus", "precision", "global_batch", "micro_batch", "seq_len"),
        *("fsdp", "tp", "pp", "cp", "vp", "ep", "step_time_s"),
    )
    tables = ("steps/megatron_bridge.csv",)
    sample = 24
    most_passes: ClassVar[Mapping[str, float]] = {_HOPPER: 5120, _BLACKWELL: 250}
    asked: ClassVar[Mapping[str, float]] = {_HOPPER: 0.10, _BLACKWELL: 0.15}

    def read(self, record: Record) -> Row:
        """One row a record."""
        record = without_parentheses(record)
        check_whole_training(record, "phase")
        model, system = model_of(record, "model"), system_of(record, record.text("system"))
        gpus, samples, micro_batch = (record.whole(name) for name in ("gpus", "global_batch", "micro_batch"))
        division, stack = division_of(record, gpus), stack_of(record, record.text("precision"))
        products = recipe_of(record.text("precision"))
        recipe = Recipe(model.name, system, products, division, _release(record))
        command = nemo_command(
            replace(model, name=recipe.trained),  # type: ignore[type-var]
            division,
            stack,
            products=products,
            micro_batch=micro_batch,
            micro_batches=division.micro_batches(record, samples, micro_batch),
            gpu=system.gpu,
            topology=system.topology(gpus),
            seq=record.whole("seq_len"),
            **(recipe.options() if division.ep > 1 else {}),
        )
        label = f"{record.text('model')} {division.label} batch={samples}/{micro_batch} {record.text('precision')}"
        label += f" {record.text('system')} {record.text('release')}"
        return Row(
            *(label, model.name, record.number("step_time_s"), "s", command),
            gpu=system.gpu,
            framework="Megatron-Bridge",
            part=_HOPPER if system.gpu.startswith("H") else _BLACKWELL,
        )


def _release(record: Record) -> tuple[int, int]:
    """Return the year and month of a release: of ``26.06.01 NeMo Container`` 26 and 6."""
    year, month = record.text("release").split()[0].split(".")[:2]
    return int(year), int(month)


FORMATS = (MegatronBridge(),)
