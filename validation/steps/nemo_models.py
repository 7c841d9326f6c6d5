"""What NVIDIA's NeMo trains, by the names of its tables, and the systems that it trains on."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from triosim.models.architectures.model import Model
from triosim.models.catalogue import MODELS
from validation.steps.command import Command, OutOfScope
from validation.steps.megatron_command import Division, megatron_command
from validation.steps.rows import Record

#: A table's name of a model, in small letters and without what stands between, and triosim's.
_MODELS = {
    "gpt35b": "gpt3-5b",
    "gpt320b": "gpt3-20b",
    "gpt3175b": "gpt3-175b",
    "llama27b": "llama2-7b",
    "llama213b": "llama2-13b",
    "llama270b": "llama2-70b",
    "llama38b": "llama3-8b",
    "llama318b": "llama3-8b",
    "llama370b": "llama3-70b",
    "llama3170b": "llama3-70b",
    "llama31405b": "llama3-405b",
    "llama3405b": "llama3-405b",
    "nemotron22b": "nemotron-22b",
    "mixtral8x7b": "mixtral-8x7b",
    "mixtral8x22b": "mixtral-8x22b",
    "deepseekv3": "deepseek-v3",
    "deepseekv3671b": "deepseek-v3",
    "kimik2": "kimi-k2",
    "gptoss20b": "gpt-oss-20b",
    "gptoss120b": "gpt-oss-120b",
    "qwen38b": "qwen3-8b",
    "qwen330ba3b": "qwen3-30b-a3b",
    "qwen3moe30b": "qwen3-30b-a3b",
    "qwen330b": "qwen3-30b-a3b",
    "qwen3235ba22b": "qwen3-235b-a22b",
    "qwen3moe235b": "qwen3-235b-a22b",
    "qwen3235b": "qwen3-235b-a22b",
}
#: What is not described, by a part of the name, and why.
_OUT_OF_SCOPE = {
    "nemotron[^a-z0-9]*(3|v3|h|nano|super|ultra)": "its layers are Mamba's between those of attention",
    "deepseek[^a-z0-9]*v4": "its sparse attention is not described",
    "qwen3[^a-z0-9]*next": "its linear attention is not described",
    "vl|flux|wan|diffusion": "it reads or makes images",
}
#: The software stack by the precision that a table names.
_STACKS = {"bf16": "megatron", **dict.fromkeys(("fp8", "mxfp8", "fp8cs", "fp8ds", "fp8mx", "nvfp4"), "te-fp8")}
#: The recipe of Transformer Engine, where a precision names one that is not the stack's.
_RECIPES = {"fp8cs": "fp8-current", "fp8mx": "mxfp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class System:
    """A GPU, and the GPUs that one NVLink domain of the system has; ``rack`` of them are used of a rack of 72."""

    gpu: str
    preset: str
    rack: int | None = None

    def topology(self, gpus: int) -> str | None:
        """Return the topology of so many GPUs; None where the GPU's usual one has them in a node."""
        if self.rack is None:
            return f"{self.preset}(gpus={gpus})" if gpus > 8 else None
        return f"{self.preset}(gpus={gpus}, gpus_per_node={min(self.rack, gpus)})"


_SYSTEMS = {
    "DGX-H100": System("H100-SXM", "dgx-h100"),
    "DGX-H200": System("H200", "dgx-h200"),
    "DGX-B200": System("B200", "dgx-b200"),
    "DGX-B300": System("B300", "dgx-b300"),
    "DGX-GB200": System("GB200", "gb200-nvl72", 64),
    "DGX-GB300": System("GB300", "gb300-nvl72", 64),
}


def model_of(record: Record, column: str) -> Model:
    """Return the model of a row. Raises ``OutOfScope`` for one that triosim does not describe."""
    said = record.text(column)
    plain = said.lower()
    for pattern, why in _OUT_OF_SCOPE.items():
        if re.search(pattern, plain):
            raise OutOfScope(f"'{said}' is no plain transformer: {why}", where=record.where)
    name = _MODELS.get(re.sub(r"\(.*?\)|2-node|[^a-z0-9]", "", plain), "")
    record.check(bool(name), f"'{column}' is '{said}'", f"known: {', '.join(sorted(set(_MODELS.values())))}")
    return MODELS[name]


def check_whole_training(record: Record, *columns: str) -> None:
    """Raise ``OutOfScope`` for a row that trains adapters alone."""
    for column in columns:
        if "lora" in record.values.get(column, "").lower():
            raise OutOfScope("LoRA trains adapters alone", where=record.where)


def system_of(record: Record, said: str) -> System:
    """Return the system of a row."""
    record.check(said in _SYSTEMS, f"the system is '{said}'", f"known: {', '.join(_SYSTEMS)}")
    return _SYSTEMS[said]


def stack_of(record: Record, said: str) -> str:
    """Return the software stack of a precision."""
    name = re.sub("[^a-z0-9]", "", said.lower())
    record.check(name in _STACKS, f"the precision is '{said}'", f"known: {', '.join(_STACKS)}")
    return _STACKS[name]


def recipe_of(said: str) -> str | None:
    """Return ``--products`` of a precision; None for the stack's."""
    return _RECIPES.get(re.sub("[^a-z0-9]", "", said.lower()))


def without_parentheses(record: Record) -> Record:
    """Return a row's own values: those in parentheses belong to a finer scaling."""
    return replace(record, values={key: text.partition("(")[0].strip() for key, text in record.values.items()})


def nemo_command(
    model: Model, division: Division, stack: str, *, option: tuple[str, ...] = (), **options: Any
) -> Command:
    """Return the command of a model that Megatron-Core trains; further options by name are added.

    Its dispatcher sends tokens in their own dtype, whatever its products are in.
    """
    if division.ep > 1:
        options = {"ep_transport": "deepep"} | options
        option += ("load=balanced",)
        option += ("deepep_dispatch=as-is",) if options["ep_transport"] else ()
    layers = getattr(model, "layers", 1)
    return megatron_command(model.name, layers, division, stack=stack, option=option, **options)
