"""The subject of a search: a described model or the trace of a step, and the sizes that rules and default spaces follow."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from triosim import gpus as catalogue
from triosim.config import RunConfig
from triosim.configuration_search.spaces.script import Script
from triosim.errors import TriosimError
from triosim.gpus import DEFAULT_GPU
from triosim.models.catalogue import with_layers
from triosim.models.description import find_model
from triosim.pipeline.reading import TraceLike, is_described, read
from triosim.trace import Trace

#: The sizes of a described model that divide among GPUs.
_SIZES = ("layers", "heads", "kv_heads", "hidden", "feed_forward", "vocab", "experts", "sequence")


@dataclass(frozen=True, slots=True)
class SearchSubject:
    """The subject: a trace, which is read once, or the name of a model, which each point describes as it needs it.

    ``gpu`` is the GPU that it runs on where a point names none. ``batch_size`` is the trace's; None for a model. ``sizes`` are
    those of a described model, by name; a trace does not tell its own. A ``script`` is captured at each point instead.
    """

    name: str
    source: str | Trace = field(repr=False, compare=False)
    gpu: str
    batch_size: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict, compare=False)
    script: Script | None = None

    @property
    def described(self) -> bool:
        """Whether it is a model."""
        return isinstance(self.source, str) and self.script is None


def subject_of(trace: TraceLike, config: RunConfig) -> SearchSubject:
    """Return the subject of a search. Raises ``TriosimError`` for what cannot be read, and for captured task streams."""
    if is_described(trace, config):
        name, sizes = str(trace), model_sizes(str(trace), config)
        gpu = catalogue.find(DEFAULT_GPU).name
        return SearchSubject(str(Path(name).resolve()) if Path(name).exists() else name, name, gpu, sizes=sizes)
    found = read(trace, RunConfig.of(trace_format=config.trace_format))
    if found.streams is not None:
        what = "task streams run as they were captured: there is nothing to search"
        raise TriosimError(what, where=found.path, fix="give a trace of one GPU, or a model")
    name = found.trace.source if found.path is None else str(Path(found.path).resolve())
    return SearchSubject(name or found.trace.model, found.trace, found.trace.gpu, found.trace.batch_size)


def subject_of_script(script: Script) -> SearchSubject:
    """Return a script as the subject of a search."""
    gpu = catalogue.find(DEFAULT_GPU).name
    return SearchSubject(shlex.join((script.path, *script.arguments)), script.path, gpu, script=script)


def model_sizes(name: str, config: RunConfig) -> dict[str, int]:
    """Return the sizes of a model that are whole numbers above 0; those that ``config`` changes are changed."""
    model = find_model(name)
    if config.layers is not None:
        model = with_layers(model, config.layers)
    sizes = {size: getattr(model, size, None) for size in _SIZES} | {"sequence": config.seq or model.sequence}
    return {size: value for size, value in sizes.items() if isinstance(value, int) and value > 0}
