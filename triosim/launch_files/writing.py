"""Writes the launch files of a job, and says in them what the framework does otherwise than it was simulated.

What is otherwise is found by reading the written keys back into a job, by the same table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triosim import __version__
from triosim.config import RunConfig
from triosim.config.run_config import option_named
from triosim.errors import OptionError, OutputError, TriosimError, nearest
from triosim.launch_files.accelerate import ACCELERATE
from triosim.launch_files.correspondence import Entry, Framework, Reading
from triosim.launch_files.deepspeed import DEEPSPEED, as_json, data_parallel_ranks, nested
from triosim.launch_files.job import OPTION, SIZES, Job, ModelSizes, job_of, on_system_of, options_of
from triosim.launch_files.megatron import MEGATRON, as_arguments
from triosim.launch_files.torchtitan import TORCHTITAN, torchtitan_text
from triosim.output_files import check_writable, writing_folder, writing_text
from triosim.simulation import simulate_config
from triosim.units import format_time


@dataclass(frozen=True, slots=True)
class Exported:
    """What is written: a job, the GPUs of a node, and the options that it was simulated with.

    ``gpu`` is the name of its GPUs and ``seconds`` what its step was predicted to take; None where it was not simulated.
    ``has_tokens`` says whether it trains on tokens, where the model is not described.
    """

    job: Job
    node: int
    config: RunConfig
    gpu: str = ""
    seconds: float | None = None
    has_tokens: bool = True

    @property
    def predicted(self) -> str:
        """What was predicted, in words."""
        return "" if self.seconds is None else f", {format_time(self.seconds)} a step predicted on {self.gpu}"

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-self.job.gpus // self.node)

    @property
    def gpus_of_node(self) -> int:
        """The GPUs of a node that the job has."""
        return min(self.node, self.job.gpus)


#: From what is written, the keys' values and the lines of comments to the files' texts by name.
FileWriter = Callable[[Exported, Mapping[str, Any], list[str]], dict[str, str]]


def _torchtitan(exported: Exported, values: Mapping[str, Any], comments: list[str]) -> dict[str, str]:
    command = torchrun(exported, "-m torchtitan.train --job.config_file torchtitan.toml")
    at_model = {"model": list(TORCHTITAN.of_model(exported.job.model))}
    return {"torchtitan.toml": torchtitan_text(values, comments, at_model), "torchtitan.sh": command}


def torchrun(exported: Exported, arguments: str, comments: Iterable[str] = (), head: Iterable[str] = ()) -> str:
    """Return a shell script that starts a job's processes on one of its nodes."""
    nodes = exported.nodes
    said = [f"--nnodes {nodes}", f"--nproc-per-node {exported.gpus_of_node}"]
    if nodes > 1:
        said.append('--rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT"')
    lines = ["#!/bin/bash", *(f"# {line}" for line in comments)]
    if nodes > 1:
        lines.append(
            f"# Run it on each of the {nodes} nodes, with MASTER_ADDR and MASTER_PORT set to the same address."
        )
    return "\n".join((*lines, *head, f"torchrun {' '.join(said)} {arguments}")) + "\n"


def _megatron(exported: Exported, values: Mapping[str, Any], comments: list[str]) -> dict[str, str]:
    head = ["ARGS=(", *(f"    {line}" for line in as_arguments(values)), ")"]
    return {"megatron.sh": torchrun(exported, 'pretrain_gpt.py "${ARGS[@]}"', comments, head)}


def _deepspeed(exported: Exported, values: Mapping[str, Any], comments: list[str]) -> dict[str, str]:
    """JSON has no comments: these are in a text and in the script beside it."""
    comments = [*comments, *_of_script(exported.job)]
    command = f"deepspeed --num_nodes {exported.nodes} --num_gpus {exported.gpus_of_node}"
    lines = [
        "#!/bin/bash",
        *(f"# {line}" for line in comments),
        f"{command} train.py --deepspeed_config deepspeed.json",
    ]
    texts = {"deepspeed.txt": "\n".join(comments) + "\n", "deepspeed.sh": "\n".join(lines) + "\n"}
    return {"deepspeed.json": as_json(values), **texts}


def _of_script(job: Job) -> Iterator[str]:
    """Yield what a script of DeepSpeed builds itself for a job's parallelisms, and whose samples its batch counts."""
    ranks = data_parallel_ranks(job)
    if job.size("pp") > 1:
        yield f"Your script builds the pipeline: deepspeed.pipe.PipelineModule(layers, num_stages={job.size('pp')})."
        yield f"Batches are those of its {ranks} data-parallel ranks."
    if job.size("tp") > 1:
        yield f"train_batch_size follows from the {ranks} data-parallel ranks, which your script's mpu tells DeepSpeed."


def _accelerate(exported: Exported, values: Mapping[str, Any], comments: list[str]) -> dict[str, str]:
    import yaml

    content = {
        "compute_environment": "LOCAL_MACHINE",
        **nested(values),
        "num_machines": exported.nodes,
        "machine_rank": 0,
    }
    if exported.nodes > 1:
        comments = [*comments, "Set machine_rank, main_process_ip and main_process_port on each node."]
    text = "".join(f"# {line}\n" for line in comments)
    return {"accelerate.yaml": text + yaml.safe_dump(content, sort_keys=False)}


WRITERS: Mapping[str, tuple[Framework, FileWriter]] = {
    "torchtitan": (TORCHTITAN, _torchtitan),
    "megatron": (MEGATRON, _megatron),
    "deepspeed": (DEEPSPEED, _deepspeed),
    "accelerate": (ACCELERATE, _accelerate),
}


def check_export(folder: str | None, names: list[str] | None) -> None:
    """Raise ``OptionError`` or ``OutputError`` where launch files could not be written."""
    if folder is None:
        if names:
            raise OptionError("has no folder to write to", where="--for", fix="add --export DIR")
        return
    if not names:
        raise OptionError("does not say for which framework", where="--export", fix=f"add --for {'|'.join(WRITERS)}")
    for name in names:
        if name not in WRITERS:
            raise OptionError(
                f"'{name}' is no framework that is written for", where="--for", fix=nearest(name, WRITERS)
            )
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise OutputError("is not a folder", where=folder, fix="choose another")
    if not place.exists() and not place.parent.is_dir():
        raise OutputError(f"the folder '{place.parent}' does not exist", where=folder, fix="make it first")


def check_model(names: Iterable[str], model: ModelSizes, *, has_tokens: bool = True) -> None:
    """Raise ``OptionError`` for a model that one of the frameworks does not train."""
    for framework in (WRITERS[name][0] for name in names):
        if not framework.trains(model, has_tokens=has_tokens):
            fix = f"give --for {' or '.join(name for name, (one, _) in WRITERS.items() if not one.architectures)}"
            what = f"{framework.versions} does not train {model.name}"
            raise OptionError(what, where=f"--for {framework.name}", fix=fix)


def write_launch_files(folder: str, names: list[str], exported: Exported) -> list[str]:
    """Write the launch files of frameworks into a folder, which is made; return what is not in them as it was simulated."""
    said: list[str] = []
    check_model(names, exported.job.model, has_tokens=exported.has_tokens)
    with writing_folder(folder):
        for name in names:
            framework, files = WRITERS[name]
            values = framework.written(exported.job)
            different = list(differences(framework, values, exported))
            different += _change_of_step(framework, values, exported) if different else []
            different = [*framework.of_model(exported.job.model), *different]
            texts = files(exported, values, [*_heading(framework, exported), *_listed(different)])
            paths = {str(Path(folder) / file): text for file, text in texts.items()}
            for path in paths:
                check_writable(path)
            for path, text in paths.items():
                with writing_text(path) as file:
                    file.write(text)
            said += [f"{framework.name}: {one}" for one in different]
    return said


def _heading(framework: Framework, exported: Exported) -> Iterator[str]:
    job = exported.job
    yield f"Written by triosim {__version__} for {framework.versions}: {job.model.name} on {job.gpus} GPUs{exported.predicted}."
    said = [f"{name} {_value(name, value)}" for name, value in job.settings.items() if name in framework.of_script]
    if said:
        yield f"The training script says the rest, as it was simulated: {', '.join(said)}."


def _listed(different: list[str]) -> Iterator[str]:
    if different:
        yield "Not as it was simulated:"
        yield from (f"  {one}" for one in different)
    else:
        yield "All else of the step is as it was simulated."


def differences(framework: Framework, values: Mapping[str, Any], exported: Exported) -> Iterator[str]:
    """Yield what the keys' values make of a step otherwise than it was simulated, a line for each setting."""
    job = exported.job
    try:
        back = read_back(framework, values, exported)
    except TriosimError as error:
        yield f"the file as a whole cannot be simulated: {error}"
        return
    if (samples := back.global_batch_size) != job.global_batch_size:
        yield f"global_batch_size: simulated was {job.global_batch_size}, this is {samples}"
    for name in dict.fromkeys((*job.settings, *back.settings)):
        ours, theirs = job.settings.get(name), back.settings.get(name)
        if ours != theirs and not _is_default(name, ours, theirs):
            yield f"{_shown(name)}: simulated was {_value(name, ours)}, this is {_value(name, theirs)}"


def _change_of_step(framework: Framework, values: Mapping[str, Any], exported: Exported) -> Iterator[str]:
    """Yield how long the step takes that the files stand for, where that can be simulated."""
    if exported.seconds is None:
        return
    try:
        back = read_back(framework, values, exported)
        config = on_system_of(exported.config, back.settings, back.gpus)
        seconds = simulate_config(exported.job.model.name, config).step_time_s
    except TriosimError as error:
        yield f"the step of these files cannot be simulated: {error}"
        return
    yield f"in all, the step of these files takes {format_time(seconds)}, {seconds / exported.seconds - 1.0:+.1%}"


def read_back(framework: Framework, values: Mapping[str, Any], exported: Exported) -> Job:
    """Return the job that the keys' values stand for. Raises ``TriosimError`` for one that cannot be."""
    reading = Reading(framework, framework.name, exported.job.model)
    settings = reading.settings({key: Entry(value, key) for key, value in values.items()})
    return _back(framework, settings, exported)


def _back(framework: Framework, settings: Mapping[str, Any], exported: Exported) -> Job:
    """Return the job that the settings of a file make: with what a script says, and on as many GPUs as its sizes make."""
    given, job = exported.config, exported.job
    unsaid = framework.of_script | {"layers"}  # which the model has, whoever names it
    settings = {**{name: job.settings[name] for name in unsaid & job.settings.keys()}, **settings}
    sizes = [settings[name] for name in SIZES if name in settings and name != "ep"]
    gpus = job.gpus if None in sizes else math.prod(sizes)
    if "global_batch_size" in settings:
        settings.pop("micro_batches", None)
    options = {**options_of(settings), "gpus": gpus, "gpu": given.gpu, "trace_format": given.trace_format}
    return job_of(job.model.name, RunConfig.of(**options), gpus)


def _is_default(name: str, *values: Any) -> bool:
    """Whether values of an option are all its default, said or not."""
    if name in SIZES or name.startswith(OPTION):
        return False
    return {*values} == {None, option_named(name).parsed_default}


def _shown(name: str) -> str:
    return name.removeprefix(OPTION) if name.startswith(OPTION) else name


def _value(name: str, value: Any) -> str:
    if value is None:
        default = None if name in SIZES or name.startswith(OPTION) else option_named(name).default
        return "1" if name in SIZES else f"the default{'' if default is None else f', {default}'}"
    if name in ("bucket_size", "first_bucket_size"):
        return f"{value / 2**20:.4g} MiB"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
