"""The plug-in registry: finds parts by name, those that ship with triosim, entry points, and classes in users' files.

A plug-in is named by its entry point (``my-network``), by module and class (``package.module:Class``) or by file and
class (``my_file.py:Class``).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from triosim.errors import PluginError, TriosimError, nearest

Group = Literal[
    "networks", "extrapolators", "schedules", "collective_algorithms", "compute_models", "trace_formats", "reports"
]  # fmt: skip
GROUPS: tuple[Group, ...] = get_args(Group)

#: What ships with triosim. Kept here and not as entry points, whose scan would cost every start 20 ms.
BUILT_IN: dict[Group, dict[str, str]] = {
    "networks": {
        "packet": "triosim.networks.flow.packet:PacketNetwork",
        "analytical": "triosim.networks.analytical:AnalyticalNetwork",
        "photonic": "triosim.networks.photonic.photonic:PhotonicNetwork",
    },
    "extrapolators": {
        "single": "triosim.extrapolators.data.single:Single",
        "dp": "triosim.extrapolators.data.dp:DataParallel",
        "ddp": "triosim.extrapolators.data.ddp:DistributedDataParallel",
        "fsdp": "triosim.extrapolators.data.fsdp:FullyShardedDataParallel",
        "zero1": "triosim.extrapolators.data.zero:Zero1",
        "zero2": "triosim.extrapolators.data.zero:Zero2",
        "cp": "triosim.extrapolators.tensor.cp:ContextParallel",
        "ep": "triosim.extrapolators.expert.ep:ExpertParallel",
        "tables": "triosim.extrapolators.embedding.tables:ShardedTables",
        "tp": "triosim.extrapolators.tensor.tp:TensorParallel",
        "pp": "triosim.extrapolators.pipeline.pp:PipelineParallel",
        "local-sgd": "triosim.extrapolators.data.local_sgd:LocalSGD",
        "parameter-server": "triosim.extrapolators.data.parameter_server:ParameterServer",
        "hop": "triosim.extrapolators.data.hop:Hop",
    },
    "schedules": {
        "gpipe": "triosim.extrapolators.pipeline.schedules.gpipe:GPipe",
        "1f1b": "triosim.extrapolators.pipeline.schedules.one_f_one_b:OneForwardOneBackward",
        "zero-bubble": "triosim.extrapolators.pipeline.schedules.zero_bubble:ZeroBubble",
        "dualpipe": "triosim.extrapolators.pipeline.schedules.dualpipe:DualPipe",
        "interleaved": "triosim.extrapolators.pipeline.schedules.interleaved:Interleaved",
    },
    "collective_algorithms": {
        "ring": "triosim.networks.collectives.algorithms.ring:Ring",
        "bidirectional-ring": "triosim.networks.collectives.algorithms.bidirectional_ring:BidirectionalRing",
        "chain": "triosim.networks.collectives.algorithms.chain:Chain",
        "tree": "triosim.networks.collectives.algorithms.tree:Tree",
        "double-binary-tree": "triosim.networks.collectives.algorithms.double_binary_tree:DoubleBinaryTree",
        "direct": "triosim.networks.collectives.algorithms.direct:Direct",
        "halving-doubling": "triosim.networks.collectives.algorithms.halving_doubling:HalvingDoubling",
        "hierarchical": "triosim.networks.collectives.algorithms.hierarchical:Hierarchical",
        "in-switch": "triosim.networks.collectives.algorithms.in_switch:InSwitch",
        "nvls": "triosim.networks.collectives.algorithms.in_switch:SlicedInSwitch",
        "auto": "triosim.networks.collectives.algorithms.auto:Auto",
    },
    "compute_models": {
        "linear": "triosim.compute.models.linear:Linear",
        "roofline": "triosim.compute.models.roofline:Roofline",
        "elementwise": "triosim.compute.models.elementwise:Elementwise",
        "reduction": "triosim.compute.models.forest:Reduction",
        "forest": "triosim.compute.models.forest:Forest",
        "auto": "triosim.compute.models.auto:AutoComputeModel",
    },
    "trace_formats": {
        "streams": "triosim.trace.formats.native.streams_json",  # before "json", because traces stand in it
        "json": "triosim.trace.formats.native.trace_json",
        "csv": "triosim.trace.formats.csv_pair",
        "pytorch": "triosim.trace.formats.pytorch.profiler_folder",
        "model": "triosim.models.trace_format",
    },
    "reports": {
        "text": "triosim.reports.terminal.result_tables:ResultText",
        "html": "triosim.reports.files.html:Html",
        "csv": "triosim.reports.files.csv_table:Csv",
        "parquet": "triosim.reports.files.arrow_table:Parquet",
        "arrow": "triosim.reports.files.arrow_table:Arrow",
        "timeline": "triosim.reports.files.timeline:Timeline",
        "kineto": "triosim.reports.kineto.report:Kineto",
        "plot": "triosim.reports.pictures.plot:Plot",
        "page": "triosim.reports.page.report:Page",
        "comparison-page": "triosim.reports.page.comparison:ComparisonPage",
        "link-plot": "triosim.reports.pictures.link_plot:LinkPlot",
        "comparison-text": "triosim.reports.terminal.comparison_table:ComparisonText",
        "comparison-html": "triosim.reports.terminal.comparison_table:ComparisonHtml",
        "comparison-plot": "triosim.reports.pictures.comparison_plot:ComparisonPlot",
    },
}

#: The options of parallelisms that have a flag of their own.
_PARALLELISM_FLAGS = "triosim.extrapolators.core.flags:FLAGS"

#: What a plug-in must have: one of each tuple.
REQUIRED: dict[Group, tuple[tuple[str, ...], ...]] = {
    "networks": (("transfer",),),
    "extrapolators": (("transform", "tasks"),),
    "schedules": (("table",),),
    "collective_algorithms": (("transfers",),),
    "compute_models": (("estimate",),),
    "trace_formats": (("recognises",), ("read",)),
    "reports": (("write",),),
}


def shown(group: Group) -> str:
    """Return what users call the parts of a group."""
    return "parallelisms" if group == "extrapolators" else group.replace("_", " ")


def names(group: Group) -> list[str]:
    """Return the names that ``load`` knows: the built-in ones first, then the entry points of installed packages."""
    return [*BUILT_IN[group], *(name for name in _entry_points(group) if name not in BUILT_IN[group])]


def load(group: Group, name: str) -> Any:
    """Return the class (for a trace format: the module or object) that a name stands for.

    Raises ``PluginError`` when there is no such name, when its file or module cannot be imported, or when it lacks a
    method that the interface requires.
    """
    target = BUILT_IN[group].get(name)
    if target is not None:
        return _import(target)
    if ":" in name or name.endswith(".py"):
        found = _from_file(name) if _looks_like_file(name) else _import(name)
    else:
        entry = _entry_points(group).get(name)
        if entry is None:
            raise PluginError(f"unknown {shown(group).removesuffix('s')} '{name}'", fix=nearest(name, names(group)))
        found = _import(entry)
    return _checked(group, name, found)


def parallelism_flags() -> tuple[Any, ...]:
    """Return the declarations of the options of parallelisms that have a flag of their own."""
    found: tuple[Any, ...] = _import(_PARALLELISM_FLAGS)
    return found


def find(group: Group, part: str | type) -> Any:
    """Return what a user names as a part: by a name, or in Python the class itself."""
    return load(group, part) if isinstance(part, str) else _checked(group, label(part), part)


def file_of(name: str) -> str:
    """Return the file that a name is of: of ``file.py:Class`` the file, of any other name itself."""
    file, separator, _ = name.partition(".py:")
    return f"{file}.py" if separator else name


def option_names(plugin: Any, positional: int = 0, settings: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the options that a plug-in's constructor takes, after so many positional arguments.

    A constructor with ``**options`` takes those that its class declares. ``settings`` have options of their own, so that they
    cannot be given by name.
    """
    parameters = list(inspect.signature(plugin).parameters.items())[positional:]
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, parameter in parameters if parameter.kind in kinds]
    if any(parameter.kind is parameter.VAR_KEYWORD for _, parameter in parameters):
        names += [option.key or option.name for option in getattr(plugin, "options", ())]
    return tuple(name for name in dict.fromkeys(names) if name not in settings)


def make(plugin: Any, *arguments: Any, options: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Any:
    """Call a plug-in's constructor with ``arguments``, and with those of ``options`` and ``settings`` that it takes.

    A setting of None leaves the plug-in's default. Raises ``PluginError`` when it fails.
    """
    settings = settings or {}
    parameters = inspect.signature(plugin).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    keywords = {
        name: value for name, value in settings.items() if (takes_all or name in parameters) and value is not None
    }
    named = option_names(plugin, len(arguments), settings)
    try:
        return plugin(*arguments, **keywords, **{name: options[name] for name in named if name in options})
    except TriosimError:
        raise
    except (Exception, SystemExit) as error:
        where = line_in_plugin(error) or label(plugin)
        raise PluginError(f"cannot be constructed: {_said(error)}", where=where, fix=FOR_TRACEBACK) from error


@contextmanager
def blamed() -> Iterator[None]:
    """Turn an exception that comes from a plug-in's code into a ``PluginError`` that names the file and the line.

    A plug-in's code is what is neither triosim's nor that of the libraries below it.
    """
    try:
        yield
    except TriosimError:
        raise
    except (Exception, SystemExit) as error:
        place = line_in_plugin(error)
        if place is None:
            raise
        raise PluginError(_said(error), where=place, fix=FOR_TRACEBACK) from error


FOR_TRACEBACK = "set TRIOSIM_DEBUG=1 for the traceback"
_LIBRARIES = frozenset({"triosim", "simpy", "numpy", "networkx", "pydantic", "yaml", *sys.stdlib_module_names})


def line_in_plugin(error: BaseException | None) -> str | None:
    """Return file, line and method of the innermost frame of a plug-in, also of what SimPy re-raised."""
    found = None
    while error is not None:
        traceback = error.__traceback__
        while traceback is not None:
            module = traceback.tb_frame.f_globals.get("__name__", "")
            if module.partition(".")[0] not in _LIBRARIES:
                code, owner = traceback.tb_frame.f_code, traceback.tb_frame.f_locals.get("self")
                name = code.co_name if owner is None else f"{type(owner).__qualname__}.{code.co_name}"
                found = f"{code.co_filename}:{traceback.tb_lineno} ({name})"
            traceback = traceback.tb_next
        error = error.__cause__
    return found


def label(plugin: Any) -> str:
    """Return what errors call a plug-in: ``file.py:Class``, or for a part of triosim its class."""
    kind = plugin if hasattr(plugin, "__qualname__") else type(plugin)
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return str(
        kind.__qualname__ if file is None or kind.__module__.startswith("triosim.") else f"{file}:{kind.__qualname__}"
    )


def _entry_points(group: Group) -> dict[str, str]:
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in sorted(entry_points(group=f"triosim.{group}"))}


def _looks_like_file(name: str) -> bool:
    return name.rpartition(":")[0].endswith(".py") or name.endswith(".py")


def _import(target: str) -> Any:
    """Import ``module:attribute`` or ``module``."""
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script that is named by mistake may end the process
        raise PluginError(f"cannot be imported: {_said(error)}", where=module_name or target) from error
    return _attribute(module, attribute, module_name) if attribute else module


def _from_file(name: str) -> Any:
    """Import ``file.py:Class``, or ``file.py`` as a module."""
    path_name, attribute = (name, "") if name.endswith(".py") else name.rsplit(":", 1)
    path = Path(path_name)
    if not path.is_file():
        raise PluginError("there is no such file", where=path_name, fix="name a plug-in as file.py:Class")
    module_name = f"triosim_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise PluginError("is not a Python file", where=path_name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look a class's module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise PluginError(f"cannot be imported: {_said(error)}", where=path_name) from error
    return _attribute(module, attribute, path_name) if attribute else module


def _attribute(module: ModuleType, attribute: str, where: str) -> Any:
    try:
        return getattr(module, attribute)
    except AttributeError:
        own = {name: one for name, one in vars(module).items() if getattr(one, "__module__", None) == module.__name__}
        public = [name for name in own or vars(module) if not name.startswith("_")]
        raise PluginError(f"has no '{attribute}'", where=where, fix=nearest(attribute, public)) from None


def _checked(group: Group, name: str, found: Any) -> Any:
    """Refuse a plug-in that lacks what its interface requires, or an abstract one."""
    if isinstance(found, ModuleType) and group != "trace_formats":
        file = name.rstrip(":")
        raise PluginError("names a file, not a class in it", where=file, fix=f"write {file}:Class")
    for alternatives in REQUIRED[group]:
        if not any(callable(getattr(found, method, None)) for method in alternatives):
            wanted = " or ".join(f"'{method}'" for method in alternatives)
            raise PluginError(f"has no method {wanted}, which {shown(group)} need", where=name)
    abstract = sorted(getattr(found, "__abstractmethods__", ()))
    if abstract:
        raise PluginError(f"does not define {', '.join(abstract)}", where=name)
    return found


def _said(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
