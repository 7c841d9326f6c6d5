"""The edits of a launch file that make a job another one: the lines to change, by the framework's own table of keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from triosim.config import RunConfig
from triosim.errors import TriosimError
from triosim.launch_files.correspondence import Entry, Framework, Reading
from triosim.launch_files.job import SIZES, Job, job_of, options_of
from triosim.launch_files.reading import LaunchFile
from triosim.launch_files.trainer import TRAINER
from triosim.launch_files.writing import WRITERS, Exported, differences, read_back


def framework_of(launch: LaunchFile) -> Framework | None:
    """Return the framework of a launch file whose keys can be written; None where there is none."""
    known = {name: framework for name, (framework, _) in WRITERS.items()}
    found = next((known[name] for name in reversed(launch.frameworks) if name in known), None)
    return TRAINER if found is None and TRAINER.name in launch.frameworks else found


def is_expressible(framework: Framework, before: Exported, after: Exported) -> bool:
    """Whether a framework has keys for all that a change changes; what it could not say before, it need not after."""
    known = {_name(line) for line in differences(framework, framework.written(before.job), before)}
    return {_name(line) for line in differences(framework, framework.written(after.job), after)} <= known


def as_trained(framework: Framework, exported: Exported, names: Iterable[str]) -> dict[str, Any]:
    """Return the settings of a job, of which the framework chooses those of ``names`` by itself."""
    job, back = exported.job, read_back(framework, framework.written(exported.job), exported)
    chosen = {name: back.settings[name] for name in names if name in back.settings}
    return {**{name: value for name, value in job.settings.items() if name not in names}, **chosen}


def _name(line: str) -> str:
    return line.partition(":")[0]


def edits(framework: Framework, launch: LaunchFile, before: Job, after: Job) -> Iterator[str]:
    """Yield the lines of a launch file to change, each as it is to be; and what the training script is to say."""
    old, new = framework.written(before), framework.written(after)
    wanted = {key: new.get(key) for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)}
    for key in list(wanted):
        fewer = {name: value for name, value in wanted.items() if name != key}
        if _makes(framework, launch, fewer, before, after):
            wanted = fewer
    for key, value in wanted.items():
        place = launch.lines.get(key)
        shown = _shown(framework, value)
        if place is not None:
            yield (
                f"{place}: leave it out"
                if value is None
                else f"{place}: write {shown}"
                if shown
                else f"{place}: give it"
            )
        elif value is not None:
            yield _added(framework, launch, key, value)
    if not wanted:
        said = sorted(_changed(before, after) & framework.of_script)
        yield from (f"the training script: {name} {after.get(name)}" for name in said)


def _added(framework: Framework, launch: LaunchFile, key: str, value: Any) -> str:
    """Return what to add to the file that has a framework's keys: a key, or an argument where those are arguments."""
    places = [place for name, place in launch.lines.items() if name in framework.keys]
    path, _, label = places[-1].rpartition(": ") if places else (launch.path, "", "")
    head, _, line = path.rpartition(":")
    path = head if head and line.isdigit() else path
    if framework.arguments:
        return f"{path}: add --{key} {_shown(framework, value)}".rstrip()
    if label.startswith("--"):  # accelerate's launcher calls them as its sections do, the Trainer as they are
        said = value if isinstance(value, str) else json.dumps(value)
        return f"{path}: add --{key.rpartition('.')[2]} {said}"
    return f"{path}: add {key} {json.dumps(value)}"


def _shown(framework: Framework, value: Any) -> str:
    """Return a value as the framework's files have it; an argument that is a flag has none."""
    if framework.arguments:
        return "" if value is True else str(value)
    return json.dumps(value)


def _changed(before: Job, after: Job) -> set[str]:
    """Return the settings in which two jobs differ."""
    names = {*before.settings, *after.settings}
    return {name for name in names if before.settings.get(name) != after.settings.get(name)}


def _makes(framework: Framework, launch: LaunchFile, wanted: Mapping[str, Any], before: Job, after: Job) -> bool:
    """Whether a file with these keys changed has the settings in which the jobs differ."""
    entries = {**launch.entries, **{key: Entry(value, key) for key, value in wanted.items()}}
    entries = {key: entry for key, entry in entries.items() if entry.value is not None and key in framework.keys}
    changed = _changed(before, after)
    try:
        reading = Reading(framework, launch.path, after.model, ignore=True)
        found = reading.settings(entries)
        if {str(one) for one in reading.ignored} - {str(one) for one in launch.ignored}:
            return False
        others = {name: value for name, value in before.settings.items() if name not in (*changed, *SIZES)}
        settings = {**others, **found}
        if "global_batch_size" in found:
            settings.pop("micro_batches", None)
        config = RunConfig.of(**{**options_of(settings), "gpus": before.gpus})
        made = job_of(before.model.name, config, before.gpus)
    except TriosimError:
        return False
    return all(made.settings.get(name) == after.settings.get(name) for name in changed)
