"""``compare`` of Chakra graphs: their step on several systems, on the engine and, where it is asked for, by ASTRA-sim's rules.

A system is a topology, or a folder with ASTRA-sim's files; what a folder does not hold is that of the run, or lies beside the
graphs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from triosim.chakra.inputs.files import InputFiles, input_files
from triosim.config import RunConfig
from triosim.engine import Progress
from triosim.engine.astra_sim.run import Settings
from triosim.engine.astra_sim.study import StudyFiles, plain, read_study, simulate_study
from triosim.errors import OptionError, TriosimError
from triosim.results.values import mean_of_ranks
from triosim.simulation import simulate_config

SCHEMA = "triosim-graph-comparison/1"
ENGINE = "triosim"


@dataclass(frozen=True, slots=True)
class GraphStep:
    """The step of graphs in seconds, and of that the mean over the ranks."""

    step_time_s: float
    compute_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_waiting_s: float | None  # of the exposed communication; ASTRA-sim's rules do not tell it apart
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphRun:
    """A step on one system, by the engine or the named rules, or the ``reason`` why it cannot run there."""

    system: str
    rules: str
    step: GraphStep | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GraphComparison:
    """The steps of one workload, in the order in which systems were given."""

    graphs: str
    runs: tuple[GraphRun, ...]

    def to_json(self) -> str:
        """Return the comparison as JSON text; ``speed_up`` is over the first that runs."""
        rows = [
            {"system": run.system, "rules": run.rules, "speed_up": self.speed_up(run), **_figures(run)}
            for run in self.runs
        ]
        return json.dumps({"schema": SCHEMA, "graphs": self.graphs, "runs": rows}, indent=2, allow_nan=False) + "\n"

    def speed_up(self, run: GraphRun) -> float | None:
        """Return how many times as fast a run is as the first."""
        first = next((one.step for one in self.runs if one.step is not None), None)
        if run.step is None or first is None or not run.step.step_time_s:
            return None
        return first.step_time_s / run.step.step_time_s


def _figures(run: GraphRun) -> Mapping[str, Any]:
    return {"reason": run.reason} if run.step is None else asdict(run.step)


def compare_graphs(
    prefix: Path,
    systems: Sequence[str],
    config: RunConfig,
    rules: Settings | None = None,
    *,
    started: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> GraphComparison:
    """Simulate graphs on every system, with the other options of a run; with ``rules`` by ASTRA-sim's, too.

    Without a system it is the network beside the graphs. Raises ``TriosimError`` where they can run on none.
    """
    beside = input_files(prefix).network
    systems = systems or ([] if beside is None else [str(beside)])
    if not systems:
        raise OptionError(
            "no system is given", where="--topology", fix="give each: -t dgx-h100 -t network.yml -t folder/"
        )
    runs: list[GraphRun] = []
    for system in systems:
        if started is not None:
            started(system)
        runs.append(_run(system, ENGINE, partial(_on_engine, prefix, system, config, progress)))
        if rules is not None:
            runs.append(_run(system, rules.backend, partial(_by_rules, prefix, system, config, rules)))
    if all(run.step is None for run in runs):
        raise TriosimError(f"the graphs can run on no system: {runs[0].reason}")
    return GraphComparison(str(prefix), tuple(runs))


def _run(system: str, rules: str, step: Callable[[], GraphStep]) -> GraphRun:
    try:
        return GraphRun(system, rules, step())
    except TriosimError as error:
        return GraphRun(system, rules, None, str(error))


def _on_engine(prefix: Path, system: str, config: RunConfig, progress: Progress | None) -> GraphStep:
    given = dict(_given(system))
    topology = given.pop("network", system)
    if topology is None:
        raise OptionError("there is no network.yml in it", where=system, fix="give a topology, or a folder with one")
    result = simulate_config(str(prefix), config.replaced(topology=str(topology), **_texts(given)), progress)
    mean = mean_of_ranks(result.data.ranks, 0)
    exposed = mean.exposed_communication_s, mean.exposed_waiting_s
    return GraphStep(result.step_time_s, mean.compute_s, mean.communication_s, *exposed, tuple(result.notes))


def _by_rules(prefix: Path, system: str, config: RunConfig, settings: Settings) -> GraphStep:
    given = {"network": system, "system": config.system, "memory": config.memory, "groups": config.groups}
    named = {**given, **_texts(_given(system))}
    files = input_files(
        prefix, network=named["network"], system=named["system"], memory=named["memory"], groups=named["groups"]
    )
    if files.network is None or not files.network.is_file() or files.system is None:
        what = "ASTRA-sim's rules need a network.yml and a system.json"
        raise OptionError(what, where=system, fix="give a folder with both, or --system")
    study = read_study(StudyFiles(prefix, files.network, files.system, files.memory, files.groups, notes=files.notes))
    data = plain(study, simulate_study(study, settings), settings)
    compute, communication, exposed = (
        sum(rank[name] for rank in data["ranks"]) / len(data["ranks"]) / 1e9
        for name in ("computing", "communicating", "exposed_communication")
    )
    return GraphStep(data["cycles"] / 1e9, compute, communication, exposed, None, tuple(data["notes"]))


def _given(system: str) -> Mapping[str, Path | None]:
    """Return ASTRA-sim's files in the folder of a system; nothing where it is a topology."""
    if not Path(system).is_dir():
        return {}
    files: InputFiles = input_files(Path(system))
    return {"network": files.network, "system": files.system, "memory": files.memory, "groups": files.groups}


def _texts(given: Mapping[str, Path | None]) -> Mapping[str, str]:
    return {name: str(path) for name, path in given.items() if path is not None}


def notes_of(comparison: GraphComparison) -> Iterator[str]:
    """Yield each note of the runs once."""
    yield from dict.fromkeys(note for run in comparison.runs if run.step is not None for note in run.step.notes)
