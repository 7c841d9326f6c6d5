"""The last step of a simulation, ``collect``: turns the recording of a run into a result, with the inputs that made it."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import triosim
from triosim.config import COMMON, RunConfig
from triosim.config.file import SUBJECT, absolute, as_json
from triosim.config.run_config import option_named
from triosim.errors import SimulationError
from triosim.extrapolators.captured.captured_plan import CapturedPlan
from triosim.networks.topology import Topology
from triosim.pipeline.planning import PlannedRun
from triosim.pipeline.reading import Subject, files_of
from triosim.pipeline.running import Execution
from triosim.results.figures import figures
from triosim.results.finished_run import FinishedRun, MetricOptions
from triosim.results.result import Result
from triosim.units import LONGEST_SECONDS

#: Less than a cycle of a GPU's clock, in seconds.
_SHORTEST_STEP = 1e-10


def collect(execution: Execution, planned: PlannedRun, config: RunConfig) -> Result:
    """Return the result of a run. Raises ``SimulationError`` where nothing was computed, or in a time that cannot be."""
    subject, network = planned.priced.subject, execution.network
    conditions = planned.system.conditions
    stated = bool(conditions.interference or conditions.gpu_events)
    launches = planned.priced.launches is not None
    memory = planned.memory if planned.memory.is_known else None
    finished = FinishedRun(execution.recording, subject.trace, planned.plan, network, memory, stated, launches)
    data = figures(
        finished,
        inputs=inputs_of(subject, config, network.topology),
        notes=(*planned.notes, *execution.notes),
        options=MetricOptions(config.tokens_per_sample, config.price, conditions.gpu_kinds),
    )
    if not _SHORTEST_STEP <= data.step_time_s <= LONGEST_SECONDS:
        what = f"the step takes {data.step_time_s:.3g} s, as on no machine"
        raise SimulationError(what, fix="look at the operator times, which 'triosim show' lists")
    return Result(data, execution.recording, network.topology, network, memory, planned.facts)


def inputs_of(subject: Subject, config: RunConfig, topology: Topology) -> dict[str, Any]:
    """Return everything needed to run it again."""
    trace = subject.trace
    return {
        "versions": versions(),
        "config": config_values(subject, config),
        "files": {
            name: {"path": absolute(path), "sha256": sha256(Path(path))}
            for name, path in files_of(subject, config).items()
        },
        "parallel": CapturedPlan.parallel if subject.streams is not None else str(config.parallel),
        "trace": {
            "model": trace.model,
            "gpu": trace.gpu,
            "batch_size": trace.batch_size,
            "times": trace.times,
            "operators": len(trace.operators),
            "described": subject.described,
            "stack": trace.software.get("stack", "as captured"),
        },
        "topology": {"name": topology.name, "gpus": len(topology.gpus), "links": len(topology.links)},
    }


def config_values(subject: Subject, config: RunConfig) -> dict[str, Any]:
    """Return the subject and the options of a run, as ``--config`` reads them; a trace that was no file has no name."""
    trace = {} if subject.path is None else {SUBJECT: absolute(subject.path)}
    return trace | {name: as_json(option_named(name), getattr(config, name)) for name in (*COMMON, *config.parts)}


def versions() -> dict[str, str]:
    """Return the versions of triosim, of Python and of what the figures depend on."""
    from importlib.metadata import version  # importing numpy to ask it would cost 80 ms

    return {
        "triosim": triosim.__version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "simpy": version("simpy"),
    }


def sha256(path: Path) -> str | dict[str, str]:
    """Return a file's SHA-256, or that of each file of a folder by name."""
    if path.is_dir():
        return {file.name: _sha256(file) for file in sorted(path.iterdir()) if file.is_file()}
    return _sha256(path)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
