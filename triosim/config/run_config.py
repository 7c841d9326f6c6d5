"""The configuration of a run: one frozen object, whose fields are the options that belong to no part."""

# ruff: noqa: RUF009 - each field declares its option

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from triosim.config import parts as of_parts
from triosim.config.option import CONDITION, MODEL, OUTPUT, PARALLELISM, SYSTEM, TIMES, Kind, Option
from triosim.errors import OptionError, PluginError, nearest


def _option(kind: Kind, default: Any, help: str, panel: str = PARALLELISM, **more: Any) -> Any:
    """Return the field of an option, whose name is the field's."""
    declared = Option("", kind, default, help, panel=panel, **more)
    return field(default=default, metadata={"option": declared})


def _model(kind: Kind, default: Any, help: str, metavar: str = "", **more: Any) -> Any:
    """Return the field of an option that says how a described model's step is written."""
    shown = metavar or "|".join(more.get("choices", ()))
    return _option(kind, default, help, MODEL, metavar=shown, of_step=True, **more)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What a user chose for a run: an attribute for each option, those that parts declare included (``config.tp_style``).

    ``parts`` holds the values given to options that parts declare with flags of their own, ``options`` what ``--option``
    gives to any part by name, as text. Make one with ``RunConfig.of``, which checks every value.
    """

    parallel: Any = _option(
        "object",
        "single",
        "single, dp, ddp, fsdp, zero1, zero2, tp, cp, ep, pp, local-sgd, with sizes and combined (dp=2,tp=4), "
        "parameter-server, hop, or a plug-in (file.py:Class).",
        short="-p",
        of_step=True,
        commands=("simulate", "memory"),
    )
    trace_format: str | None = _option(
        "text",
        None,
        "The trace's format, if its content does not say: a name, or a plug-in's file.py.",
        metavar="NAME",
        panel="",
    )
    gpus: int | None = _option(
        "whole",
        None,
        "How many GPUs. By default the product of the sizes in --parallel, or all GPUs of the topology.",
        metavar="N",
        short="-n",
        commands=("simulate", "memory"),
    )
    batch_size: int | None = _option(
        "whole",
        None,
        "Samples of each data-parallel replica. By default the trace's.",
        unit="samples",
        metavar="N",
        short="-b",
        of_step=True,
    )
    global_batch_size: int | None = _option(
        "whole",
        None,
        "Samples of all replicas together, instead of --batch-size.",
        unit="samples",
        metavar="N",
        of_step=True,
    )
    training: bool = _option(
        "flag",
        True,
        "Simulate the forward pass alone.",
        flag="--inference",
        of_step=True,
        python_help="Simulate the backward pass and the optimizer too; False is inference, the forward pass alone.",
    )
    iterations: int = _option("whole", 1, "Steps to simulate.", metavar="N", commands=("simulate",))
    micro_batches: int | None = _option(
        "whole",
        None,
        "The number of micro-batches in a batch: by default as many as pp has GPUs, or as its schedule needs. "
        "Without pp, gradients accumulate.",
        metavar="M",
        of_step=True,
        commands=("simulate", "memory"),
    )
    micro_batch_size: int | None = _option(
        "whole",
        None,
        "Samples in a micro-batch: a replica's batch is divided into as many as it takes. Without a batch size, "
        "--micro-batches of them make a replica's batch.",
        unit="samples",
        metavar="N",
        of_step=True,
    )
    recompute: str = _option(
        "text",
        "none",
        "Which activations the backward pass recomputes: none, selective (attention), full, checkpoint (as "
        "torch.utils.checkpoint), save=mm,attention for all but these, or modules=mlp for those of these modules.",
        metavar="POLICY",
        of_training=True,
        of_step=True,
    )
    topology: Any = _option(
        "file",
        None,
        "dgx-h100, 'ring(8, bandwidth=50 GB/s)' or a YAML file. By default the usual machine of the trace's GPU.",
        SYSTEM,
        metavar="NAME",
        short="-t",
        commands=("simulate", "compare"),
    )
    network: str | type = _option(
        "part",
        "packet",
        "The sharing rule: packet, analytical, photonic, module:Class or file.py:Class.",
        SYSTEM,
        metavar="NAME",
        commands=("simulate", "compare"),
    )
    collective: str | type | None = _option(
        "part",
        None,
        "The collective algorithm: auto (as NCCL chooses), ring, tree, nvls, ... or file.py:Class. By default ring.",
        SYSTEM,
        metavar="NAME",
        commands=("simulate", "compare"),
    )
    collective_form: Literal["pipelined", "steps"] = _option(
        "choice",
        "pipelined",
        "pipelined (all of an algorithm's edges at once) or steps (one after the other).",
        SYSTEM,
        choices=("pipelined", "steps"),
        metavar="FORM",
        commands=("simulate", "compare"),
    )
    copy_input: bool = _option(
        "flag",
        False,
        "Whether the input is copied from host memory.",
        SYSTEM,
        flag="--copy-input/--no-copy-input",
        of_step=True,
        commands=("simulate", "compare"),
    )
    host_overhead: float | Literal["trace", "none"] | None = _option(
        "time",
        None,
        "The host's time to launch an operator: '5 us', trace for each operator's own, or none. By default none.",
        SYSTEM,
        choices=("trace", "none"),
        metavar="TIME",
        commands=("simulate", "compare"),
    )
    run_ahead: int | None = _option(
        "whole",
        None,
        "The most operators that the host may be ahead of its GPU. By default as many as CUDA's launch queue holds.",
        SYSTEM,
        metavar="N",
        commands=("simulate",),
    )
    conditions: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "option": Option(
                "",
                "mapping",
                None,
                "What is uneven or slow, beside what the topology's file says: {'slow_gpus': {3: 1.5}}.",
                panel=CONDITION,
                commands=(),
            )
        },
    )
    draws: int = _option(
        "whole",
        1,
        "The number of random draws (of stragglers, slow links, tokens of ep); more than one show how step times vary.",
        CONDITION,
        metavar="N",
        commands=("simulate", "compare"),
    )
    options: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "option": Option(
                "",
                "mapping",
                None,
                "An option of a parallelism (fsdp: prefetch=2), network, collective or plug-in. Repeatable.",
                panel=SYSTEM,
                flag="--option",
                metavar="KEY=VALUE",
                repeatable=True,
                python_help="Options of parallelisms, network, collective or plug-ins, by name: {'prefetch': 2} for fsdp.",
            )
        },
    )
    fail_on_oom: bool = _option(
        "flag", False, "Stop with exit status 3 if a rank does not fit its GPU.", SYSTEM, commands=("simulate",)
    )
    fold: bool | None = _option(
        "flag",
        None,
        "Simulate identical ranks once: the same results, sooner. By default from 16 GPUs on.",
        SYSTEM,
        flag="--fold/--no-fold",
        commands=("simulate", "compare"),
    )
    gpu: Any = _option(
        "file",
        None,
        "Predict for another GPU than the trace's: a name that 'triosim gpus' lists, or a YAML file.",
        TIMES,
        metavar="NAME",
        commands=("simulate", "compare"),
    )
    operator_times: str | None = _option(
        "file",
        None,
        "Times that replace the trace's, by operator or layer.",
        TIMES,
        metavar="FILE",
        commands=("simulate", "compare"),
    )
    compute_model: str | type = _option(
        "part",
        "auto",
        "What estimates operators of other shapes: auto, linear, roofline, module:Class or file.py:Class.",
        TIMES,
        metavar="NAME",
        commands=("simulate", "compare"),
    )
    tokens_per_sample: float | None = _option(
        "number",
        None,
        "Tokens in a sample, for tokens per second. By default the input length of the embedding.",
        OUTPUT,
        unit="tokens",
        metavar="N",
        commands=("simulate", "compare"),
    )
    price: float | None = _option(
        "number",
        None,
        "The price of a GPU for an hour, to compute the cost of a step. By default the catalogue's, if it has one.",
        OUTPUT,
        metavar="PRICE",
        commands=("simulate", "compare"),
    )
    seq: int | None = _model("whole", None, "Tokens in a sample; by default the model's own length.", "N", short="-s")
    layers: int | None = _model("whole", None, "Another number of layers than the model's.", "N")
    dtype: str = _model("dtype", "bfloat16", "fp32, bf16 or fp16.", "NAME", choices=("float32", "bfloat16", "float16"))
    precision: str = _model(
        "choice", "plain", "Parameters in --dtype, or fp32 ones and autocast to it.", choices=("plain", "mixed")
    )
    optimizer: str = _model(
        "choice",
        "adamw",
        "adamw, fused-adamw, master-adamw (fp32 copies), sgd or none.",
        "NAME",
        choices=("adamw", "fused-adamw", "master-adamw", "sgd", "none"),
    )
    attention: str = _model(
        "choice", "flash", "One kernel, or products with the scores in memory.", choices=("flash", "math")
    )
    kernels: str | None = _model(
        "choice",
        None,
        "One an operator; one for what libraries fuse (norms, rotary embeddings, gates, the loss); or as a compiler fuses.",
        choices=("eager", "fused", "compiled"),
    )
    products: str = _model(
        "choice",
        "plain",
        "Matrix products of linear layers in --dtype, or in fp8 with a scale a tensor.",
        choices=("plain", "fp8"),
    )
    dropout: float | None = _model("probability", None, "Another probability than the model's own: 0, 0.1.", "P")
    timeline: bool = _option("flag", False, "Keep every task, for the timeline.", OUTPUT, commands=())
    links: bool = _option(
        "flag", False, "Record the load of each link over time; show the busiest.", OUTPUT, commands=("simulate",)
    )
    parts: Mapping[str, Any] = field(default_factory=dict)

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


def _condition(name: str, metavar: str, help: str, **more: Any) -> Option:
    return Option(
        name, "object", None, help, metavar=metavar, panel=CONDITION, commands=("simulate", "compare"), **more
    )


#: The keys of ``conditions``, each with a flag of its own.
CONDITIONS: tuple[Option, ...] = (
    _condition(
        "compute_slowdown",
        "FACTOR",
        "How many times longer computation takes beside a collective: 1.2, or all_reduce=1.2,send=1.1.",
    ),
    _condition(
        "collective_slowdown",
        "FACTOR",
        "How many times longer a collective takes while a member computes: 1.1, or all_reduce=1.1.",
    ),
    _condition(
        "slow_gpus",
        "RANKS=FACTOR",
        "GPUs whose operators take so many times longer: 3=1.5, or 4-7,12=2. Repeatable.",
        repeatable=True,
    ),
    _condition(
        "gpu_kinds",
        "RANKS=GPU",
        "GPUs of another model than the others: 4-7=V100-SXM2-32GB. Repeatable.",
        repeatable=True,
    ),
    _condition(
        "stragglers",
        "DISTRIBUTION",
        "Random slow-downs of GPUs: uniform, exponential or lognormal,spread=0.1,seed=1,every=iteration.",
    ),
    _condition(
        "slow_links", "DISTRIBUTION", "Random slow-downs of links: uniform, exponential or lognormal,spread=9,seed=1."
    ),
    _condition(
        "events",
        "EVENT",
        "A GPU or link that slows down or fails at a time: at=0.5s,gpu=3,slowdown=2 or "
        "at=1s,from=gpu0,to=gpu1,bandwidth=1GB/s. Repeatable.",
        flag="--event",
        repeatable=True,
    ),
)


def option_named(name: str) -> Option:
    """Return the declaration of an option with a name of its own. Raises ``OptionError`` for an unknown name."""
    if name in COMMON:
        return COMMON[name]
    if name not in of_parts.flags():
        raise OptionError(f"there is no option '{name}'", fix=nearest(name, [*COMMON, *of_parts.flags()]))
    return of_parts.flags()[name]


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
