"""A job: the settings of a run that a launch file may hold, each with its value, were it a default that the run follows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from triosim import gpus as catalogue
from triosim.config import COMMON, RunConfig, flags, readers
from triosim.config.offload import TIERS, Offload
from triosim.config.run_config import option_named
from triosim.config.stacks import STACKS
from triosim.errors import TriosimError
from triosim.extrapolators.core.parallelisms import Parallelisms
from triosim.extrapolators.core.plan import batches
from triosim.gpus import DEFAULT_GPU
from triosim.models.catalogue import MODELS, usual_stack, with_layers
from triosim.models.description import find_model
from triosim.pipeline.reading import is_described, with_batch

#: The parallelisms that have sizes in a launch file, as settings of these names.
SIZES = ("fsdp", "zero1", "zero2", "ddp", "dp", "cp", "ep", "tp", "pp")
#: Those of replicas, the ones that share first.
REPLICATED = ("fsdp", "zero2", "zero1", "ddp", "dp")
#: Those that shard, also over the ranks of context parallelism.
_SHARDING = ("fsdp", "zero1", "zero2")
#: How a setting is called that ``--option`` gives.
OPTION = "options."
#: Settings that a software stack has a value for.
_OF_STACK = ("optimizer", "attention", "kernels", "products")
#: Settings that make no difference to a run with one GPU along an axis.
_OF_AXIS = {
    "pp": ("schedule", "virtual_stages", "stages", "balance_stages"),
    "tp": ("tp_style", "sequence_parallel"),
    "ep": ("ep_transport", "ep_overlap"),
}


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """What is trained: the ``name`` of a described model with its sizes, or a trace, which tells none.

    ``architecture`` is the class of a described model; ``base`` the name of the catalogue's model that it is made from, and
    ``changed`` are that one's sizes where others were given.
    """

    name: str = ""
    described: bool = False
    sizes: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = ""
    base: str = ""
    changed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: str, config: RunConfig) -> ModelSizes:
        """Return those of a run's subject. Raises ``TriosimError`` for a model that is not known."""
        if not is_described(subject, config):
            return cls(subject)
        model: Any = find_model(subject)
        if config.layers is not None:
            model = with_layers(model, config.layers)
        sizes, base = _sizes_of(model), subject.partition("(")[0]
        usual = _sizes_of(MODELS[base]) if base in MODELS else {}
        changed = {name: value for name, value in usual.items() if name != "style" and value != sizes.get(name)}
        return cls(subject, True, sizes, type(model).__name__, base if usual else "", changed)

    def size(self, name: str) -> int | None:
        """Return a size that is a whole number; None where the model has none."""
        value = self.sizes.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


def _sizes_of(model: Any) -> dict[str, Any]:
    return {one.name: getattr(model, one.name) for one in fields(model) if one.name != "name"}


@dataclass(frozen=True, slots=True)
class Job:
    """A run on ``gpus`` GPUs by its ``settings``: sizes of parallelisms, options by name, and ``options.NAME`` for others.

    Settings that make no difference to the run, and sizes of 1, are left out.
    """

    gpus: int
    replicas: int
    settings: Mapping[str, Any]
    model: ModelSizes

    def size(self, *names: str) -> int:
        """Return the product of the sizes of parallelisms."""
        return math.prod(int(self.settings.get(name) or 1) for name in names)

    def get(self, name: str) -> Any:
        """Return a setting, or the default of its option."""
        if name in self.settings or name.startswith(OPTION) or name in SIZES:
            return self.settings.get(name)
        return option_named(name).parsed_default

    @property
    def micro_batch_size(self) -> int:
        """The samples of a micro-batch."""
        return int(self.settings["micro_batch_size"])

    @property
    def micro_batches(self) -> int:
        """The micro-batches of a replica in a step."""
        return int(self.settings["micro_batches"])

    @property
    def global_batch_size(self) -> int:
        """The samples of a step."""
        return self.micro_batch_size * self.micro_batches * self.replicas


def job_of(subject: str, config: RunConfig, gpus: int, traced: int = 1) -> Job:
    """Return the job that a run on ``gpus`` GPUs is; ``traced`` are the samples of the trace, where the subject is one.

    Raises ``TriosimError`` for options that contradict each other.
    """
    model = ModelSizes.of(subject, config)
    config = with_batch(config) if model.described else config
    parallelisms = Parallelisms.of(config.parallel, gpus, config)
    samples, micro_batches = batches(parallelisms, config, traced)
    along = {part.axis: part.size for part in parallelisms.all}
    sizes = {name: ranks for name, ranks in along.items() if divides(name, ranks, along)}
    own = _own_options(parallelisms, config)
    settings: dict[str, Any] = {**sizes, **dict(_described(model, config))}
    settings |= {"micro_batch_size": samples // micro_batches, "micro_batches": micro_batches, **own}
    without = {name for axis, names in _OF_AXIS.items() if axis not in sizes for name in names}
    described = _OF_STACK if model.described else ()
    dividing = [part for part in parallelisms.all if part.axis not in SIZES or {part.axis, "cp"} & {*sizes}]
    read = {option.name for part in dividing for option in part.read_options} | {"gradient_dtype"}
    for name in (*COMMON, *flags()):
        option = option_named(name)
        ours = option.of_step and name not in settings and name not in without and name not in described
        if ours and (name in read or name in COMMON) and config.is_given(name) and name not in _OF_BATCH:
            settings[name] = getattr(config, name)
    return Job(gpus, parallelisms.replicas, dict(_resolved(settings, config, model)), model)


#: Settings that follow from the micro-batches, and the one that is the sizes.
_OF_BATCH = ("parallel", "batch_size", "global_batch_size", "micro_batches", "micro_batch_size")


def _resolved(settings: Mapping[str, Any], config: RunConfig, model: ModelSizes) -> Iterator[tuple[str, Any]]:
    """Yield the settings without those that are as they are by default, and with defaults that other settings decide."""
    given = dict(settings)
    if "pp" in given:
        given["schedule"] = config.schedule
        if config.schedule == "interleaved":
            given["virtual_stages"] = config.virtual_stages or 2
        else:
            given.pop("virtual_stages", None)
    if model.described and given.get("tp_style") == "megatron" and "heads" in model.sizes:
        del given["tp_style"]
    if config.training and model.described:
        given["gradient_dtype"] = config.gradient_dtype or (
            "float32" if given.get("precision") == "mixed" else given["dtype"]
        )
    if given.get("offload") is not None:
        given["offload"] = offload_text(Offload.of(str(given["offload"]), training=config.training))
    yield from given.items()


def offload_text(offload: Offload) -> str | None:
    """Return what is offloaded as the option has it, in one order; None for nothing."""
    tiers = {part: getattr(offload, part) for part in TIERS}
    return ",".join(f"{part}={tier}" for part, tier in tiers.items() if tier is not None) or None


def _described(model: ModelSizes, config: RunConfig) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a described model's step."""
    if not model.described:
        return
    usual = usual_stack(find_model(model.name))
    stack = usual if config.stack is None else STACKS[config.stack]
    length = config.seq or model.size("sequence")
    if length is not None:
        yield "seq", length
    yield "stack", stack.name
    for name in _OF_STACK:
        value = getattr(config, name)
        if value is not None and value != getattr(stack, name):
            yield name, value
    yield "dtype", config.dtype or _usual_dtype(config)


def _usual_dtype(config: RunConfig) -> str:
    """Return the dtype that a model is described in where nobody says another."""
    try:
        gpu = catalogue.find(DEFAULT_GPU) if config.gpu is None else catalogue.find(str(config.gpu))
    except TriosimError:
        return "bfloat16"
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in gpu.flops), "float32")


def _own_options(parallelisms: Parallelisms, config: RunConfig) -> dict[str, Any]:
    """Return what ``--option`` gives to the parallelisms of a run, converted, but for defaults."""
    found = {}
    for option in parallelisms.options:
        key = option.key or option.name
        if key in config.options and option.name not in flags():
            value = option.parse(config.options[key], f"--option {key}")
            if value != option.parsed_default:
                found[f"{OPTION}{key}"] = value
    return found


def divides(name: str, ranks: int | None, sizes: Mapping[str, int | None]) -> bool:
    """Whether a parallelism of a size makes a difference; one that shards does with one rank too, over those of ``cp``."""
    return ranks != 1 or (name in _SHARDING and sizes.get("cp", 1) != 1)


def on_system_of(base: RunConfig, settings: Mapping[str, Any], gpus: int) -> RunConfig:
    """Return the options of a run with other settings on the system of another run: its GPU, topology, network, conditions."""
    system = [name for name, option in COMMON.items() if not option.of_step and name not in ("options", "gpus")]
    kept = {name: getattr(base, name) for name in system if base.is_given(name)}
    own = {name: value for name, value in base.options.items() if not readers(name)}  # of the network, say
    options = options_of(settings)
    return RunConfig.of(**{**kept, **options, "gpus": gpus, "options": {**own, **options.get("options", {})}})


def options_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the run that settings stand for, as ``RunConfig.of`` takes them.

    A size that is None takes the GPUs that the others leave.
    """
    along = {name: settings[name] for name in SIZES if name in settings}
    sizes = {name: ranks for name, ranks in along.items() if divides(name, ranks, along)}
    parts = [name if size is None else f"{name}={size}" for name, size in sizes.items()]
    if parts == ["ep"] or not any(name != "ep" for name in sizes):
        parts = ["single"]
    own = {name.removeprefix(OPTION): value for name, value in settings.items() if name.startswith(OPTION)}
    others = {name: value for name, value in settings.items() if name not in SIZES and not name.startswith(OPTION)}
    found = {"parallel": ",".join(parts), **{name: value for name, value in others.items() if value is not None}}
    return {**found, "options": own} if own else found
