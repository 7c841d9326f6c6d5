"""How a user declares a search space: ``--vary NAME=VALUE,VALUE``, a YAML file, or the default for a model and a cluster.

A file has the keys ``vary``, a mapping of names to lists of values, and ``without_rules``, a list of names of rules::

    vary:
      tp: [1, 2, 4, 8]
      micro_batches: ["1*pp", "2*pp"]
      recompute: [none, full]
    without_rules: [node]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from triosim import gpus as catalogue
from triosim import plugins
from triosim.config import COMMON, RunConfig, flags
from triosim.config.file import content_of, place_of
from triosim.config.offload import Offload
from triosim.config.run_config import option_named
from triosim.configuration_search.point import Point, Value
from triosim.configuration_search.spaces.cluster import cluster_of
from triosim.configuration_search.spaces.interval import Interval
from triosim.configuration_search.spaces.layout import DATA_PARALLEL, SIZES, multiple
from triosim.configuration_search.spaces.rules import rules_without
from triosim.configuration_search.spaces.script import Script
from triosim.configuration_search.spaces.space import MEMORY_ERROR, PART_OPTION, Axis, Space
from triosim.configuration_search.spaces.subject import SearchSubject, subject_of, subject_of_script
from triosim.configuration_search.spaces.topology_axes import DIMENSIONS, TOPOLOGY_KEY, arrangements, mapping_of
from triosim.errors import OptionError, TriosimError, nearest
from triosim.extrapolators.core.recompute import check_policy
from triosim.extrapolators.pipeline.schedule_choice import chosen_schedule
from triosim.input_files import yaml_lines

#: Options that no axis can be: those of the subject, of the output, and mappings.
_FIXED = frozenset({"trace_format", "conditions", "options", "timeline", "links", "fail_on_oom", "iterations", "draws"})
#: The parallelisms of replicas.
REPLICATED = ("dp", "ddp", "fsdp", "zero1", "zero2")
#: The most GPUs along an axis, and samples of a micro-batch, that a default space tries.
_MOST_STAGES, _MOST_SAMPLES = 16, 8
#: Samples from this many tokens on are divided by context parallelism in a default space.
_LONG = 16384

#: The kinds of options of which an axis may be an interval.
_NUMERIC = ("whole", "number", "probability", "bytes", "time", "bandwidth")
#: The axes whose values name something, and what finds it.
_NAMED: Mapping[str, Callable[[str], object]] = {
    "gpu": catalogue.find,
    "network": partial(plugins.find, "networks"),
    "collective": partial(plugins.find, "collective_algorithms"),
    "compute_model": partial(plugins.find, "compute_models"),
    "schedule": lambda name: chosen_schedule(RunConfig.of(schedule=name)),
    "recompute": check_policy,
    "offload": Offload.of,
}

_MISTAKES = {"micro_batch": "micro_batch_size", "mbs": "micro_batch_size", "sharding": DATA_PARALLEL}


@dataclass(frozen=True, slots=True)
class Declaration:
    """The axes that a user declares, by name, and the rules that are left out."""

    axes: Mapping[str, Axis] = field(default_factory=dict)
    without_rules: frozenset[str] = frozenset()

    def merged(self, other: Declaration) -> Declaration:
        """Return both; an axis of the other one replaces one of the same name."""
        return Declaration({**self.axes, **other.axes}, self.without_rules | other.without_rules)


def of_texts(varied: Iterable[str], without_rules: Iterable[str] = ()) -> Declaration:
    """Return the axes of ``--vary``: ``NAME=VALUE,VALUE``. Raises ``OptionError``."""
    axes: dict[str, Axis] = {}
    for text in varied:
        name, separator, values = text.partition("=")
        name = name.strip().replace("-", "_") if not name.strip().startswith(PART_OPTION) else name.strip()
        if not separator or not name:
            raise OptionError(f"'{text}' is not a name and values", where="--vary", fix="write tp=1,2,4")
        if name in axes:
            raise OptionError(f"'{name}' is given twice", where="--vary", fix="give all its values once")
        axes[name] = axis_of(name, split_values(values), f"--vary {name}")
    rules_without(without_rules)
    return Declaration(axes, frozenset(without_rules))


def of_mapping(varied: Mapping[str, Any], without_rules: Iterable[str] = ()) -> Declaration:
    """Return the axes of names with their values. Raises ``OptionError``."""
    rules_without(without_rules)
    axes = {name: axis_of(name, _listed(values), f"vary {name}") for name, values in varied.items()}
    return Declaration(axes, frozenset(without_rules))


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (list, tuple)) else [values]


def of_arguments(arguments: Mapping[str, Sequence[str]]) -> Declaration:
    """Return the axes of a script's arguments, each of which may be any text."""
    return Declaration({name: Axis(name, tuple(values)) for name, values in arguments.items()})


def read_space(path: str) -> Declaration:
    """Return the space that a YAML file declares. Raises ``OptionError`` that names the file, the line and the key."""
    content, lines = content_of(path)

    def where(*keys: str) -> str:
        return place_of(path, lines, keys)

    if not isinstance(content, dict) or not isinstance(content.get("vary"), dict) or not content["vary"]:
        raise OptionError("declares no space", where=path, fix="write 'vary:' and below it names with lists of values")
    for key in content:
        if key not in ("vary", "without_rules"):
            raise OptionError(f"there is no key '{key}'", where=where(key), fix="known: vary, without_rules")
    axes: dict[str, Axis] = {}
    for name, values in content["vary"].items():
        axes[str(name)] = axis_of(str(name), _listed(values), where("vary", str(name)))
    left_out = content.get("without_rules") or []
    if not isinstance(left_out, list):
        raise OptionError("is not a list", where=where("without_rules"), fix="write [node, layers]")
    rules_without(map(str, left_out), where("without_rules"))
    return Declaration(axes, frozenset(map(str, left_out)))


def split_values(text: str) -> list[str]:
    """Return the values in a text, divided at the commas outside of brackets."""
    return [part.strip() for part in yaml_lines.split_arguments(text)]


def of_topology(varied: Iterable[str], topology: Any) -> Declaration:
    """Return the axes of ``--vary-topology``: ``dims``, or ``KEY=VALUES``. Raises ``OptionError``."""
    mapping_of(topology)
    axes: dict[str, Axis] = {}
    for text in varied:
        key, separator, values = (part.strip() for part in text.partition("="))
        if text.strip() == DIMENSIONS:
            axes |= {name: Axis(name, tuple(found)) for name, found in arrangements(topology)}
        elif separator and key:
            name = f"{TOPOLOGY_KEY}{key}"
            axes[name] = axis_of(name, split_values(values), f"--vary-topology {key}")
        else:
            fix = f"write {DIMENSIONS}, or 'bandwidth=25 GB/s..400 GB/s'"
            raise OptionError(f"'{text}' is not a key and values", where="--vary-topology", fix=fix)
    return Declaration(axes)


def axis_of(name: str, values: Sequence[Any], where: str) -> Axis:
    """Return an axis, its values checked as its option's are, each once. Raises ``OptionError``."""
    interval = Interval.read(values[0], where) if len(values) == 1 else None
    if interval is not None and _is_numeric(name):
        for end in (interval.low, interval.high):
            checked(name, interval.value(end), where)
        return Axis(name, (), interval)
    found = tuple(dict.fromkeys(checked(name, value, where) for value in values))
    if not found:
        raise OptionError("has no values", where=where, fix=f"write {name}=VALUE,VALUE")
    return Axis(name, found)


def _is_numeric(name: str) -> bool:
    if name in SIZES or name.startswith((PART_OPTION, TOPOLOGY_KEY)):
        return True
    return name in (*COMMON, *flags()) and option_named(name).kind in _NUMERIC


def checked(name: str, value: Any, where: str) -> Value:
    """Return a value of an axis, as its option has it. Raises ``OptionError`` for what it cannot be."""
    if name.startswith((PART_OPTION, TOPOLOGY_KEY)):
        if not isinstance(value, (str, int, float, bool)) or value == "":
            raise OptionError(f"'{value}' is not a single value", where=where, fix="give a word or a number")
        return value
    if name in SIZES:
        return _whole(value, where)
    if name == DATA_PARALLEL:
        if value not in REPLICATED:
            raise OptionError(f"'{value}' divides no data", where=where, fix=nearest(str(value), REPLICATED))
        return str(value)
    known = [one for one in (*COMMON, *flags()) if one not in _FIXED]
    if name not in known:
        fix = (
            f"did you mean '{_MISTAKES[name]}'?"
            if name in _MISTAKES
            else nearest(name, [*SIZES, DATA_PARALLEL, *known])
        )
        raise OptionError(f"there is no option '{name}' that can vary", where=where, fix=fix)
    option = option_named(name)
    if option.kind == "whole" and multiple(value):
        return str(value)
    parsed = option.parse(value, where)
    if isinstance(parsed, str) and name in _NAMED:
        _check_name(name, parsed, where)
    if not isinstance(parsed, (str, int, float, bool)):
        raise OptionError(f"'{value}' is not a single value", where=where, fix="give a word or a number")
    return parsed


def _check_name(axis: str, name: str, where: str) -> None:
    """Raise ``OptionError`` for a name that nothing has, of which every point would find out by itself."""
    try:
        _NAMED[axis](name)
    except TriosimError as error:
        raise OptionError(error.what, where=where, fix=error.fix) from None


def _whole(value: Any, where: str) -> int:
    if value is None:
        raise OptionError("a value is empty", where=where, fix="give a whole number")
    return int(COMMON["gpus"].parse(value, where))


def space_of(subject: SearchSubject, base: RunConfig, declared: Declaration, margin: float = MEMORY_ERROR) -> Space:
    """Return the space of a search: what is declared, or where nothing is, the default for the model and the cluster.

    Raises ``OptionError`` where all points would not train on the same batch, unless that varies.
    """
    if subject.script is not None:
        _check_of_script(declared, subject.script)
        return Space(subject, base, tuple(declared.axes.values()), declared.without_rules, margin)
    base = _of_search(subject, base, declared)
    axes = (
        declared.axes
        if any(not _is_of_system(name) for name in declared.axes)
        else {**default_axes(subject, base, declared), **declared.axes}
    )
    return Space(subject, base, tuple(axes.values()), declared.without_rules, margin)


def _is_of_system(name: str) -> bool:
    return name in ("gpus", "gpu", "topology") or name.startswith(TOPOLOGY_KEY)


def _check_of_script(declared: Declaration, script: Script) -> None:
    """Raise ``OptionError`` for an axis that changes the step of a script, which its arguments alone do."""
    for name in declared.axes:
        own = name in script.varied or name.startswith((PART_OPTION, TOPOLOGY_KEY))
        decides = name in (*SIZES, DATA_PARALLEL) or (not own and option_named(name).of_step)
        if decides and name not in ("gpus", "gpu"):
            what = f"'{name}' is what the script makes of its arguments"
            raise OptionError(what, where=f"--vary {name}", fix='vary one of them: --vary-argument "--size=1,2"')


def space_of_fingerprint(text: str) -> Space:
    """Return the space of a study. Raises ``TriosimError`` where its trace cannot be read any more."""
    plain = json.loads(text)
    base = RunConfig.of(**plain["base"])
    script = None if plain["script"] is None else Script.of_plain(plain["script"])
    varied = () if script is None else script.varied
    axes = tuple(
        Axis(name, tuple(values)) if name in varied else axis_of(name, _listed(values), f"axis {name}")
        for name, values in plain["axes"]
    )
    subject = subject_of(plain["subject"], base) if script is None else subject_of_script(script)
    return Space(subject, base, axes, frozenset(plain["without_rules"]), plain["memory_margin"])


def _of_search(subject: SearchSubject, base: RunConfig, declared: Declaration) -> RunConfig:
    """Return the options of all points: one global batch, and none of a part that a search has no use for."""
    if base.batch_size is not None:
        what = "points with other numbers of replicas would train on other batches"
        raise OptionError(what, where="--batch-size", fix="give --global-batch-size")
    options: dict[str, Any] = {}
    if base.global_batch_size is None and "global_batch_size" not in declared.axes:
        options["global_batch_size"] = most_gpus(subject, base, declared) * (subject.batch_size or 1)
    return base.replaced(**options)


def most_gpus(subject: SearchSubject, base: RunConfig, declared: Declaration) -> int:
    """Return the largest number of GPUs that a point has."""
    axis = declared.axes.get("gpus")
    if axis is not None and axis.interval is not None:
        return int(axis.interval.high)
    if axis is not None:
        return max(int(value) for value in axis.values)
    return base.gpus or _topology_gpus(subject, base, declared)


def _topology_gpus(subject: SearchSubject, base: RunConfig, declared: Declaration) -> int:
    axis = declared.axes.get("topology")
    points = [Point(())] if axis is None else [Point.of({"topology": value}) for value in axis.values]
    return max(cluster_of(subject, base, point).gpus for point in points)


def default_axes(subject: SearchSubject, base: RunConfig, declared: Declaration) -> dict[str, Axis]:
    """Return the axes of a default space; powers of two, and only what the model and the cluster have room for."""
    gpus = most_gpus(subject, base, declared)
    node = min(cluster_of(subject, base, Point.of({"gpus": gpus})).node, gpus)
    sizes = subject.sizes
    values: dict[str, Iterable[Value]] = {
        "tp": _doubled(min(node, sizes.get("heads", node))),
        "pp": _doubled(min(gpus, sizes.get("layers", _MOST_STAGES), _MOST_STAGES)),
        "micro_batch_size": _doubled(_MOST_SAMPLES),
    }
    if sizes.get("sequence", 0) >= _LONG:
        values["cp"] = _doubled(min(node, gpus))
    if "experts" in sizes:
        values["ep"] = _doubled(min(gpus, sizes["experts"]))
    if "layers" in sizes:
        values["virtual_stages"] = (1, 2)
    if base.training:
        values |= {"recompute": ("none", "selective", "full"), DATA_PARALLEL: ("ddp", "zero1", "fsdp")}
    values["sequence_parallel"] = (False, True)
    return {name: Axis(name, tuple(found)) for name, found in values.items() if not _is_said(name, base)}


def _is_said(name: str, base: RunConfig) -> bool:
    """Whether a user fixes an option of the default space for all points."""
    if name in (*SIZES, DATA_PARALLEL):
        return base.is_given("parallel")
    return base.is_given(name) or (name == "micro_batch_size" and base.is_given("micro_batches"))


def _doubled(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield size
        size *= 2
