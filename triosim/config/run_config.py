"""The configuration of a run: one frozen object, whose fields are the options that belong to no part."""

# ruff: noqa: RUF009 - each field declares its option

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from triosim.config import parts as of_parts
from triosim.config.option import (
    CHAKRA,
    CONDITION,
    EVERY_COMMAND,
    GENERAL,
    MODEL,
    OUTPUT,
    PARALLELISM,
    SYSTEM,
    TIMES,
    Command,
    Kind,
    Option,
)
from triosim.config.stacks import STACKS, ProductKind
from triosim.errors import OptionError, PluginError, nearest

#: The commands that have an option, where they are fewer than all: ``memory`` has no clock, and ``compare`` chooses by itself
#: how a step is parallelised.
_TIMED: tuple[Command, ...] = ("simulate", "compare")
_PARALLELISED: tuple[Command, ...] = ("simulate", "memory")


def _option(kind: Kind, default: Any = None, *, panel: str = PARALLELISM, help: str, **more: Any) -> Any:
    """Return the field of an option, whose name is the field's."""
    if panel not in (PARALLELISM, MODEL, GENERAL):
        more = {"commands": _TIMED, **more}
    declared = {"option": Option("", kind, default, help, panel=panel, **more)}
    return (
        field(default_factory=dict, metadata=declared)
        if kind == "mapping"
        else field(default=default, metadata=declared)
    )


def _model(kind: Kind, default: Any = None, metavar: str = "", **more: Any) -> Any:
    """Return the field of an option that says how a described model's step is written."""
    metavar = metavar or "|".join(more["choices"])
    return _option(kind, default, panel=MODEL, metavar=metavar, of_step=True, **more)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The choices of a user for a run: an attribute for each option, those that parts declare included (``config.tp_style``).

    ``parts`` holds the values given to options that parts declare with flags of their own, ``options`` what ``--option``
    gives to any part by name, as text. Make one with ``RunConfig.of``, which checks every value.
    """

    # fmt: off
    parallel: Any = _option("parallel", "single", short="-p", metavar="PARALLEL", of_step=True, commands=_PARALLELISED, help=
        "The parallelisms: single, dp, ddp, fsdp, zero1, zero2, tp, cp, ep, tables, pp, local-sgd, with sizes and combined "
        "(dp=2,tp=4), parameter-server, hop, or a plug-in (file.py:Class).")
    trace_format: str | None = _option("text", metavar="NAME", panel=GENERAL, help=
        "The trace's format, if its content does not say: a name, or a plug-in's file.py.")
    gpus: int | None = _option("whole", metavar="N", short="-n", commands=_PARALLELISED, help=
        "The number of GPUs. By default the product of the sizes in --parallel, or all GPUs of the topology.")
    batch_size: int | None = _option("whole", unit="samples", metavar="N", short="-b", of_step=True, help=
        "Samples of each data-parallel replica. By default the trace's, or one for each micro-batch of a described model.")
    global_batch_size: int | None = _option("whole", unit="samples", metavar="N", of_step=True, help=
        "Samples of all replicas together, instead of --batch-size.")
    training: bool = _option(
        "flag", True, flag="--inference", of_step=True, help="Simulate the forward pass alone.", python_help=
        "Simulate the backward pass and the optimizer too; False is inference, the forward pass alone.")
    iterations: int = _option("whole", 1, metavar="N", most=100_000, commands=("simulate",), help="Steps to simulate.")
    micro_batches: int | None = _option("whole", metavar="M", of_step=True, commands=_PARALLELISED, help=
        "The number of micro-batches in a batch: by default as many as pp has GPUs, or as its schedule needs. "
        "Without pp, gradients accumulate.")
    micro_batch_size: int | None = _option("whole", unit="samples", metavar="N", of_step=True, help=
        "Samples in a micro-batch. Without a batch size it sets that too: the number of micro-batches times this.")
    recompute: str = _option("text", "none", metavar="POLICY", of_training=True, of_step=True, help=
        "The activations that the backward pass recomputes: none, selective (attention), full, checkpoint (as "
        "torch.utils.checkpoint), full/2 for each second layer, save=mm,attention for all but these, modules=mlp for those of "
        "these modules, or discard=mlp for their outputs too.")
    offload: str = _option("text", "none", metavar="PART=MEMORY,...", of_step=True, commands=_PARALLELISED, help=
        "What is kept outside of the GPUs: none, optimizer=host or nvme, parameters=host, nvme, expansion or pool (of fsdp), "
        "activations=host, expansion or pool, combined with commas.")
    topology: Any = _option("topology", panel=SYSTEM, metavar="NAME", short="-t", commands=EVERY_COMMAND, help=
        "The system: a name (dgx-h100), a shape ('ring(8, bandwidth=50 GB/s)') or a YAML file. By default the GPU's usual one.")
    network: str | type = _option("part", "packet", panel=SYSTEM, metavar="NAME", help=
        "The network, by which transfers share links: packet, analytical, photonic, module:Class or file.py:Class.")
    collective: str | type | None = _option("part", panel=SYSTEM, metavar="NAME", help=
        "The collective algorithm: auto (as NCCL chooses), ring, tree, nvls, ... or file.py:Class. By default auto; with "
        "photonic, ring.")
    collective_form: Literal["pipelined", "steps"] = _option(
        "choice", "pipelined", panel=SYSTEM, choices=("pipelined", "steps"), metavar="FORM", help=
        "pipelined (all of an algorithm's edges at once) or steps (one after the other).")
    chunk_schedule: Literal["in-order", "themis"] = _option(
        "choice", "in-order", panel=SYSTEM, choices=("in-order", "themis"), metavar="NAME", help=
        "On networks of several dimensions, the dimensions that a chunk of a collective visits: in-order, or themis (the least "
        "loaded first).")
    copy_input: bool = _option("flag", False, panel=SYSTEM, flag="--copy-input/--no-copy-input", of_step=True, help=
        "Copy the input from host memory, or have it on the GPU already.")
    host_overhead: float | Literal["trace", "none"] | None = _option(
        "time", panel=SYSTEM, choices=("trace", "none"), longest_bare=1e-3, metavar="TIME", help=
        "The host's time to launch an operator: '5 us', trace for each operator's own, or none. By default its own where that "
        "was measured; of predicted operators, the stack's.")
    run_ahead: int | None = _option("whole", panel=SYSTEM, metavar="N", commands=("simulate",), help=
        "The most operators that the host may be ahead of its GPU; it then waits for communication that its GPU waits for. By "
        "default the stack's, or as many as CUDA's launch queue holds.")
    conditions: Mapping[str, Any] = _option("mapping", panel=CONDITION, commands=(), help=
        "Slow or unequal GPUs and links, besides those in the topology's file: {'slow_gpus': {3: 1.5}}.")
    draws: int = _option("whole", 1, panel=CONDITION, metavar="N", most=100_000, help=
        "The number of random draws (of stragglers, slow links, tokens of ep); several show the spread of step times.")
    options: Mapping[str, Any] = _option(
        "mapping", panel=SYSTEM, flag="--option", metavar="KEY=VALUE", repeatable=True, commands=EVERY_COMMAND, help=
        "An option of a part of the run by name: of a parallelism (prefetch=2, of fsdp), a network, a collective algorithm, a "
        "report or a plug-in. Repeatable.", python_help=
        "Options of parallelisms, network, collective or plug-ins, by name: {'prefetch': 2} for fsdp.")
    fail_on_oom: bool = _option("flag", False, panel=SYSTEM, commands=("simulate",), help=
        "Stop with exit status 3 if a rank does not fit its GPU.")
    fold: bool | None = _option("flag", panel=SYSTEM, flag="--fold/--no-fold", help=
        "Simulate identical ranks once, and of many identical micro-batches a few: the same results, sooner. By default ranks "
        "from 16 GPUs on.")
    gpu: Any = _option("file", panel=TIMES, metavar="NAME", help=
        "Predict for another GPU than the trace's: a name that 'triosim gpus' lists, also with what differs "
        "('H100(power=500 W)'), or a YAML file.")
    operator_times: str | None = _option("file", panel=TIMES, metavar="FILE", help=
        "A file of times that replace the trace's, by operator or layer.")
    compute_model: str | type = _option("part", "auto", panel=TIMES, metavar="NAME", help=
        "The model of operator times for other shapes than the trace's: auto, linear, roofline, module:Class or file.py:Class.")
    models: str | None = _option("file", panel=TIMES, metavar="FILE", help=
        "A file or folder of operator models that 'triosim calibrate compute' wrote, used before those that ship. By default "
        "the one that TRIOSIM_MODELS names.")
    tokens_per_sample: float | None = _option("number", panel=OUTPUT, unit="tokens", metavar="N", help=
        "Tokens in a sample, for tokens per second. By default the input length of the embedding.")
    price: float | None = _option("number", panel=OUTPUT, metavar="PRICE", help=
        "The price of a GPU for an hour, to compute the cost of a step. By default the catalogue's, if it has one.")
    seq: int | None = _model("whole", metavar="N", short="-s", help=
        "Tokens in a sample. By default the model's own length.")
    layers: int | None = _model("whole", metavar="N", help="The number of layers. By default the model's own.")
    dtype: str | None = _model("dtype", metavar="NAME", choices=("float32", "bfloat16", "float16"), help=
        "The dtype of the computation: fp32, bf16 or fp16. By default the first of bf16, fp16 and fp32 that the GPU has.")
    precision: str = _model("choice", "plain", choices=("plain", "mixed"), help=
        "plain: parameters in --dtype too. mixed: parameters in fp32, and autocast to --dtype.")
    stack: str | None = _model("choice", metavar="NAME", choices=tuple(STACKS), help=
        "The software stack, which gives the next four and --host-overhead their defaults: eager, compiled, megatron, te-fp8 "
        "(megatron in fp8) or deepspeed (Megatron-DeepSpeed of 2022). By default megatron for Megatron's GPTs, compiled for "
        "Llamas and models like them, else eager.")
    optimizer: str | None = _model(
        "choice", metavar="NAME", choices=("adamw", "fused-adamw", "master-adamw", "sgd", "none"), help=
        "adamw, fused-adamw, master-adamw (fp32 copies), sgd or none. By default the stack's.")
    attention: str | None = _model("choice", choices=("flash", "cudnn", "triton", "math"), help=
        "flash: FlashAttention-2. cudnn: cuDNN's kernel. triton: the first FlashAttention, in Triton. math: two matrix "
        "products, with the scores in memory. By default the stack's.")
    kernels: str | None = _model("choice", choices=("eager", "fused", "compiled"), help=
        "eager: one kernel an operator. fused: one for what libraries fuse (norms, rotary embeddings, gates, the loss). "
        "compiled: as a compiler fuses. By default the stack's.")
    products: str | None = _model("choice", metavar="NAME", choices=get_args(ProductKind), help=
        "Matrix products. plain: in --dtype. tf32: those of fp32 in TF32. Linear layers in fewer bits: fp8 by torchao; by "
        "Transformer Engine fp8-current, fp8-delayed, fp8-block, mxfp8, nvfp4. By default the stack's.")
    dropout: float | None = _model("probability", metavar="P", help="The probability of dropout. By default the model's own.")
    image_layout: str | None = _model("choice", choices=("channels-first", "channels-last"), help=
        "The memory format of images in a convolutional network: channels-first, as PyTorch makes them (the default), or "
        "channels-last, which tensor cores read without a conversion.")
    system: str | None = _option("file", metavar="FILE", panel=CHAKRA, help=
        "ASTRA-sim's system.json: roofline, collectives.")
    memory: str | None = _option("file", metavar="FILE", panel=CHAKRA, help=
        "ASTRA-sim's remote_memory.json: the memory that loads and stores reach.")
    groups: str | None = _option("file", metavar="FILE", panel=CHAKRA, help=
        "ASTRA-sim's comm_group.json: the ranks of each communicator group.")
    dependencies: Literal["all", "data"] = _option(
        "choice", "all", panel=CHAKRA, choices=("all", "data"), metavar="NAME", help=
        "The dependencies of graphs that count: all, or data alone, where converters made callers wait for what they call.")
    timeline: bool = _option("flag", False, panel=OUTPUT, commands=(), help="Keep every task, for the timeline.")
    timeline_ranks: str | None = _option("ranks", metavar="RANKS", panel=OUTPUT, commands=("simulate",), help=
        "The ranks that --timeline and --kineto show: 0,8 or 0-3. By default all.")
    links: bool = _option("flag", False, panel=OUTPUT, commands=("simulate",), help=
        "Record the load of each link over time; show the busiest.")
    parts: Mapping[str, Any] = field(default_factory=dict)
    # fmt: on

    @classmethod
    def of(cls, **given: Any) -> RunConfig:
        """Return the configuration of what a user gives by name. Raises ``OptionError``, for an unknown name too."""
        values: dict[str, Any] = {}
        chosen: dict[str, Any] = {}
        for name, value in given.items():
            option = option_named(name)
            if value is not None:
                (values if name in COMMON else chosen)[name] = option.parse(value)
        if "batch_size" in values and "global_batch_size" in values:
            raise OptionError(
                "both the batch size of a replica and the global batch size are given", fix="give one of the two"
            )
        return cls(**values, parts=chosen)

    def replaced(self, **given: Any) -> RunConfig:
        """Return it with other values of some options, checked."""
        changed = RunConfig.of(**given)
        common = {name: getattr(changed, name) for name in given if name in COMMON}
        own = {name: changed.value_of(option_named(name)) for name in given if name not in COMMON}
        return replace(self, **common, parts={**self.parts, **own})

    def value_of(self, option: Option) -> Any:
        """Return the value of an option that parts declare with a flag of its own."""
        return self.parts.get(option.name, option.parsed_default)

    def __getattr__(self, name: str) -> Any:
        """Return the value of an option that parts declare."""
        if name.startswith("_"):
            raise AttributeError(name)
        own: Mapping[str, Any] = object.__getattribute__(self, "parts")
        if name in own:
            return own[name]
        if name not in of_parts.flags():
            raise AttributeError(f"no part declares an option '{name}'")
        return of_parts.flags()[name].parsed_default

    def of_part(self, part: Any) -> RunConfig:
        """Return it as a part sees it: with a value for each option that the part's class declares.

        What has no flag of its own is read from ``options``. Raises ``OptionError`` for what it cannot be.
        """
        found = {}
        for option in of_parts.declared(part):
            if option.name in COMMON and option != COMMON[option.name]:
                raise PluginError(
                    f"declares the option '{option.name}', which every run has",
                    where=_name(part),
                    fix="choose another name",
                )
            if option.name in self.parts:
                found[option.name] = self.parts[option.name]
            elif (option.key or option.name) in self.options and of_parts.takes_text(option):
                key = option.key or option.name
                found[option.name] = option.parse(self.options[key], f"--option {key}")
            else:
                found[option.name] = option.parsed_default
        return replace(self, parts={**self.parts, **found})

    def is_given(self, name: str) -> bool:
        """Whether an option has another value than its default."""
        if name in COMMON:
            return bool(getattr(self, name) != getattr(_DEFAULTS, name))
        return name in self.parts and bool(self.parts[name] != option_named(name).parsed_default)


#: The options that belong to no part, by name.
COMMON: Mapping[str, Option] = {
    one.name: replace(one.metadata["option"], name=one.name) for one in fields(RunConfig) if one.name != "parts"
}
_DEFAULTS = RunConfig()


#: The options of ``triosim describe`` by the keyword of ``triosim.describe``.
DESCRIBED: Mapping[str, Option] = {
    "batch": Option("batch", "whole", 1, "Samples in a step.", metavar="N", panel=MODEL, short="-b"),
    "sequence": COMMON["seq"],
    **{name: option for name, option in COMMON.items() if option.panel == MODEL and name != "seq"},
}


def _condition(name: str, metavar: str, help: str, **more: Any) -> Option:
    return Option(name, "object", None, help, metavar=metavar, panel=CONDITION, commands=_TIMED, **more)


# fmt: off
#: The keys of ``conditions``, each with a flag of its own.
CONDITIONS: tuple[Option, ...] = (
    _condition("compute_slowdown", "FACTOR",
        "The slow-down factor of computation during a collective: 1.2, or all_reduce=1.2,send=1.1."),
    _condition("collective_slowdown", "FACTOR",
        "The slow-down factor of a collective while a member computes: 1.1, or all_reduce=1.1."),
    _condition("slow_gpus", "RANKS=FACTOR", repeatable=True, help=
        "Slow GPUs, with the factor of their operators' times: 3=1.5, or 4-7,12=2. Repeatable."),
    _condition("gpu_kinds", "RANKS=GPU", repeatable=True, help=
        "GPUs of another model than the others: 4-7=V100-SXM2-32GB. Repeatable."),
    _condition("stragglers", "LAW",
        "Random slow-downs of GPUs: uniform, exponential or lognormal, its spread and seed, and how often it is drawn "
        "(every=run or iteration): uniform,spread=0.1."),
    _condition("slow_links", "LAW",
        "Random slow-downs of links: uniform, exponential or lognormal, with its spread and seed: uniform,spread=9."),
    _condition("events", "EVENT", flag="--event", repeatable=True, help=
        "A GPU that slows down or fails at a time: at=0.5s,gpu=3,slowdown=2. Or a link, from=gpu0,to=gpu1, that fails or gets "
        "another bandwidth=1GB/s. Repeatable."),
)
# fmt: on


def option_named(name: str) -> Option:
    """Return the declaration of an option with a name of its own. Raises ``OptionError`` for an unknown name."""
    if name in COMMON:
        return COMMON[name]
    if name not in of_parts.flags():
        raise OptionError(f"there is no option '{name}'", fix=nearest(name, [*COMMON, *of_parts.flags()]))
    return of_parts.flags()[name]


#: What a command takes from Python and from files beside the options of its command line, because it makes a difference there.
_ALSO_READ: Mapping[Command, frozenset[str]] = {
    "simulate": frozenset({"conditions", "timeline"}),
    "compare": frozenset({"gpus", "conditions", "timeline", "links"}),
    "memory": frozenset({"gpu", "compute_model", "models", "operator_times", "copy_input", "fold"}),
}


def refuse_without_effect(config: RunConfig, command: Command) -> None:
    """Raise ``OptionError`` for an option that was given and that a command does not have."""
    for name in (*COMMON, *config.parts):
        have = command in option_named(name).commands or name in _ALSO_READ[command]
        if not have and config.is_given(name):
            raise OptionError(f"has no effect in {command}", where=name, fix="leave it out")


def unread(config: RunConfig, read: Iterable[Option] | None, *, described: bool = False) -> Iterator[str]:
    """Yield a note for each option that was given and that nobody in a run reads.

    ``read`` are the options that its parallelisms declare; None where one of them is a plug-in that declares nothing.
    What is simulated is ``described`` by a model's name or config, or a trace.
    """
    useless: dict[str, str] = {}
    if not config.training:
        useless = {name: "in inference" for name in (*config.parts, *COMMON) if option_named(name).of_training}
    if read is not None:
        names = {option.name for option in read}
        useless |= {name: f"without {listed(of_parts.readers(name))}" for name in config.parts if name not in names}
    if not described:
        useless |= {name: "without a described model" for name, option in COMMON.items() if option.panel == MODEL}
    for name, why in useless.items():
        if config.is_given(name):
            yield f"{option_named(name).where} has no effect {why}"


def _name(part: Any) -> str:
    return str(getattr(part, "__qualname__", part))


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence has them: ``a, b or c``."""
    return " or ".join((", ".join(words[:-1]), words[-1]) if len(words) > 1 else words)
