"""``--export``: the launch files of a simulated run, or of a point that a search chose, and what they do not say."""

from __future__ import annotations

import sys
from typing import Any

from triosim.cli.command import LaterModule
from triosim.cli.subject import ConfiguredRun
from triosim.config import RunConfig
from triosim.errors import TriosimError
from triosim.gpus import DEFAULT_GPU

cluster = LaterModule("configuration_search.spaces.cluster")
points = LaterModule("configuration_search.point")
subjects = LaterModule("configuration_search.spaces.subject")
jobs = LaterModule("launch_files.job")
writing = LaterModule("launch_files.writing")


def check_export(folder: str | None, names: list[str] | None) -> None:
    """Raise ``TriosimError`` where ``--export`` and ``--for`` ask for what cannot be written."""
    if folder is not None or names:
        writing.check_export(folder, names)


def check_model(run: ConfiguredRun, names: list[str] | None) -> None:
    """Raise ``TriosimError``, before anything is simulated, for a model that a framework does not train."""
    if names:
        writing.check_model(names, jobs.ModelSizes.of(run.subject, run.config))


def export_run(run: ConfiguredRun, result: Any, folder: str, names: list[str]) -> None:
    """Write the launch files of a simulated run; what they do not say of it is said on standard error too."""
    traced, gpus = result.inputs["trace"], len(result.data.ranks)
    if traced["stack"] == "as captured" and run.config.parallel == "single" and gpus > 1:
        raise TriosimError(
            "captured task streams have no options to export", where="--export", fix="give a trace or a model"
        )
    job = jobs.job_of(run.subject, run.config, gpus, traced["batch_size"])
    metrics = result.data.metrics
    has_tokens = metrics is not None and metrics.tokens_per_s is not None
    _write(job, run.config, traced["gpu"], result.data.step_time_s, folder, names, has_tokens=has_tokens)


def export_best(found: Any, folder: str, names: list[str]) -> None:
    """Write the launch files of the best point of a search. Raises ``TriosimError`` where none was found."""
    best, space = found.best, found.space
    if best is None or best.figures is None:
        raise TriosimError("no point was found that could be written", where="--export", fix="let more points fit")
    point = points.Point.read(best.key)
    gpu = space.gpu(point)
    config = space.config(point)
    job = jobs.job_of(space.subject.name, config.replaced(gpu=gpu), best.figures.gpus, space.subject.batch_size or 1)
    has_tokens = best.figures.tokens_per_s is not None
    _write(job, config, gpu, best.figures.step_time_s, folder, names, has_tokens=has_tokens)


def node_of(config: RunConfig, gpu: str = DEFAULT_GPU) -> int:
    """Return how many GPUs are in a node of a run's system."""
    node: int = cluster.cluster_of(subjects.SearchSubject("", "", gpu), config, points.Point(())).node
    return node


def _write(
    job: Any, config: RunConfig, gpu: str, seconds: float, folder: str, names: list[str], *, has_tokens: bool
) -> None:
    node = node_of(config.replaced(gpus=job.gpus), gpu)
    exported = writing.Exported(job, node, config, gpu, seconds, has_tokens)
    for line in writing.write_launch_files(folder, names, exported):
        print(f"triosim: note: not in the files of {line}", file=sys.stderr)
