"""Random command lines: options of a command with values that they may have, and with values that they may not."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import typer

from triosim import plugins
from triosim.cli.main import app
from triosim.cli.options import of_run
from triosim.config import Option

_NASTY = (
    "",
    "-1",
    "0",
    "1e999",
    "nan",
    "99999999999999999999",
    "9" * 400,
    "x",
    "é\x1b[31m",
    "a" * 3000,
    "../x",
    "/dev/null",
    ".",
    "none.yaml",
    "1,2,3",
    "a=b",
    "=",
    "0-3",
    "5 us",
    "25 MB",
    "50 GB/s",
    "float16",
    "trace.json",
    "[1]",
    "{}",
    "yes",
    "1.5",
    "-",
)
_SUBJECTS = ("trace.json", "trace.json", "trace.json", "gpt2", "resnet18", "nothing.json", "", ".")
_PARALLEL = (
    "single",
    "ddp",
    "ddp=4",
    "fsdp",
    "zero1=4",
    "zero2=2",
    "tp=2",
    "dp=2,tp=2",
    "pp=2",
    "cp=2",
    "ep=2",
    "dp=2,ep=2",
    "local-sgd=2",
    "hop=4",
    "parameter-server=4",
    "dp=0",
    "dp=2,dp=2",
    "tp=3",
    "xx=2",
    "dp",
    "dp=-1",
    "tp=2,pp=2,fsdp=2",
    "single,ddp",
)
_TOPOLOGIES = (
    "dgx-h100",
    "ring(4, bandwidth=10 GB/s)",
    "mesh(2x2, bandwidth=1 GB/s)",
    "Ring(2)_FC(2)",
    "switch(4, bandwidth=1e30)",
    "dgx-h100(gpus=16)",
    "torus(2, 2, bandwidth=1 GB/s)",
    "fully_connected(4000, bandwidth=1)",
    "a100-pcie",
    "nothing",
)
_OTHERS = (
    ["show", "trace.json"],
    ["gpus"],
    ["gpus", "H100"],
    ["plugins"],
    ["topology", "dgx-a100"],
    ["schedule", "1f1b", "--stages", "4"],
    ["schedule", "zero-bubble", "--stages", "3", "--micro-batches", "5"],
    ["schedule", "interleaved", "--stages", "1000000"],
    ["describe", "gpt2", "--layers", "1"],
    ["search", "gpt2", "--gpus", "2", "--vary", "tp=1,2", "--global-batch-size", "2", "-q"],
    ["convert", "trace.json", "out.json"],
    ["doubt", "trace.json"],
    ["report", "trace.json"],
    ["calibrate", "evaluate", "trace.json"],
    ["calibrate", "missing", "trace.json"],
    ["capture", "trace.json"],
    ["run", "trace.json"],
    ["nothing"],
    [],
    ["--version"],
)


_WORDS = ("--gpu", "-q", "--format", "json", "-o", "out.json")
#: Sound beginnings of the commands whose options are not those of a run alone.
_BEGINNINGS = (
    ["search", "gpt2", "--layers", "1", "--gpu", "H100", "--gpus", "2", "--global-batch-size", "2", "--vary", "tp=1,2"],
    ["schedule", "1f1b", "--stages", "3"],
    ["describe", "gpt2", "--layers", "1", "--seq", "16"],
    ["convert", "trace.json", "out.json"],
    ["report", "trace.json"],
    ["topology", "dgx-h100"],
    ["show", "trace.json"],
    ["gpus", "H100"],
    ["capture", "none.py"],
    ["run", "none.py"],
    ["calibrate", "evaluate", "trace.json"],
    ["calibrate", "compute", "trace.json"],
    ["calibrate", "network", "trace.json"],
    ["calibrate", "missing", "trace.json"],
    ["calibrate", "measure"],
    ["calibrate", "launches"],
    ["calibrate", "collectives"],
    ["calibrate", "constants"],
    ["advise", "gpt2", "--layers", "1", "--gpu", "H100", "--like", "trace.json"],
)
_VALUES_OF: Mapping[str, tuple[str, ...]] = {
    "FILE": ("out.json", "out.csv", "out.png", "out.html", "out.yaml", "trace.json", "none/out.json"),
    "DIR": ("out", "out/deep", "trace.json"),
    "N": ("1", "2", "4", "100"),
    "NAME": ("H100", "A100", "dgx-h100", "float16", "all_reduce", "linear"),
}


def random_command(draw: random.Random) -> list[str]:
    """Return the words of a command line."""
    if draw.random() < 0.3:
        words = list(draw.choice(_OTHERS))
        for _ in range(draw.choice((0, 1, 1, 2))):
            words.insert(draw.randrange(len(words) + 1), draw.choice((*_NASTY, *_WORDS)))
        return words
    if draw.random() < 0.4:
        return _with_own_options(list(draw.choice(_BEGINNINGS)), draw)
    command = draw.choice(("simulate", "simulate", "simulate", "memory", "compare"))
    words = [command, draw.choice(_SUBJECTS)]
    if words[1] in ("gpt2", "resnet18"):
        words += ["--gpu", "H100"]
    for option in draw.sample(of_run(command), draw.choice((0, 1, 2, 3, 5))):  # type: ignore[arg-type]  # a command's name
        words += _given(option, draw)
    if command != "memory":
        words += ["-q", "-o", "out.json"]
    return words


def _with_own_options(words: list[str], draw: random.Random) -> list[str]:
    """Return a command line with some of the options that the command's own help shows."""
    command: Any = typer.main.get_command(app)
    for word in words[: 2 if words[0] == "calibrate" else 1]:
        command = command.loaded(word)
    options = [one for one in command.params if one.opts[0].startswith("-") and one.name != "monitor"]
    for option in draw.sample(options, min(len(options), draw.choice((1, 1, 2, 3)))):
        words.append(draw.choice(option.opts))
        if not option.is_flag:
            values = _VALUES_OF.get(str(option.metavar), ("1", "x=1", "1,2", "auto"))
            words.append(draw.choice(_NASTY) if draw.random() < 0.3 else draw.choice(values))
    return words


def _given(option: Option, draw: random.Random) -> list[str]:
    flag = option.where
    if option.kind == "flag":
        return [flag]
    if option.metavar == "FILE" and draw.random() < 0.5:
        return []
    return [flag, draw.choice(_NASTY) if draw.random() < 0.15 else _value(option, draw)]


def _value(option: Option, draw: random.Random) -> str:
    if option.choices:
        return draw.choice(option.choices)
    if option.name == "parallel":
        return draw.choice(_PARALLEL)
    if option.name == "topology":
        return draw.choice(_TOPOLOGIES)
    if option.kind == "whole":
        return draw.choice(("1", "2", "4", "8", "3", "100"))
    if option.kind == "part" and option.group is not None:
        return draw.choice(list(plugins.names(option.group)))
    kinds = {
        "bytes": "25 MB",
        "time": "5 us",
        "bandwidth": "50 GB/s",
        "dtype": "float16",
        "number": "2.5",
        "probability": "0.1",
    }
    if option.kind in kinds:
        return kinds[option.kind]
    return draw.choice(
        ("1=1.5", "uniform,spread=0.1", "at=0.001s,gpu=1,slowdown=2", "full", "H100", "0-1", "1.2", "prefetch=2")
    )
