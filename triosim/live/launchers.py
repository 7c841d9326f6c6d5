"""Command lines of launchers, such as torchrun's: which script they start, in how many processes, and what they tell it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from triosim.errors import OptionError
from triosim.live import accelerate_launch
from triosim.tracer.script_runner import Script

#: Options of launchers that take no value, without their dashes.
_FLAGS = {
    "torchrun": {"standalone", "no-python", "m", "module", "run-path", "use-env", "virtual-local-rank"},
    "accelerate": {
        *(
            "multi-gpu",
            "use-fsdp",
            "use-deepspeed",
            "use-megatron-lm",
            "cpu",
            "m",
            "module",
            "no-python",
            "same-network",
        ),
        *("quiet", "q", "debug", "fsdp-use-orig-params", "dynamo-use-dynamic", "dynamo-use-fullgraph"),
    },
    "deepspeed": {"module", "no-python", "no-local-rank", "bind-cores-to-rank", "force-multi", "save-pid"},
}
#: Modules that are launchers, when Python runs them.
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
#: Options of Python itself that take a value.
_PYTHON_VALUES = ("-W", "-X", "--check-hash-based-pycs")
#: Numbers of processes that are those of the machine's GPUs.
_ALL_GPUS = ("gpu", "auto")


@dataclass(frozen=True, slots=True)
class Launch:
    """A script, and in how many processes it is started: in all (``world``) and on a machine (``local``).

    Both are None where there is no launcher, and where it starts one for each GPU of so many machines (``nodes``).
    """

    script: Script
    world: int | None = None
    local: int | None = None
    nodes: int | None = None

    @classmethod
    def on(cls, script: Script, nodes: int, local: int | None) -> Launch:
        """Return the launch of ``local`` processes on each of so many machines, by default one for each GPU."""
        return cls(script, nodes=nodes) if local is None else cls(script, nodes * local, local)


def launch_of(words: Sequence[str]) -> Launch:
    """Return what a command line starts. Raises ``OptionError`` where it starts no Python script."""
    if not words:
        raise OptionError("Missing argument 'SCRIPT'", fix="see 'triosim run --help'")
    name = Path(words[0]).name
    if name == "accelerate" and words[1:2] == ["launch"]:
        return _launched("accelerate", words[2:])
    if name in ("torchrun", "deepspeed"):
        return _launched(name, words[1:])
    if name.startswith("python") and not name.endswith(".py"):
        return _of_python(words[1:])
    if words[0] == "-m":
        return _of_module(words[1:])
    return Launch(Script(words[0], tuple(words[1:])))


def _of_python(words: Sequence[str]) -> Launch:
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[2:] if rest[0] in _PYTHON_VALUES else rest[1:]
    if not rest or rest[0] == "-c":
        raise OptionError(
            "no script is named", where=" ".join(["python", *words]), fix="name a Python file or -m MODULE"
        )
    return _of_module(rest[1:]) if rest[0] == "-m" else Launch(Script(rest[0], tuple(rest[1:])))


def _of_module(words: Sequence[str]) -> Launch:
    if not words:
        raise OptionError("names no module", where="-m", fix="-m package.train")
    if words[0] in _MODULES:
        return _launched(_MODULES[words[0]], words[1:])
    return Launch(Script(words[0], tuple(words[1:]), module=True))


def _launched(launcher: str, words: Sequence[str]) -> Launch:
    """Return what a launcher starts: its own options come first."""
    kind = "torchrun" if launcher == "torch.distributed.launch" else launcher
    rest = list(words)
    options = dict(_own_options(kind, rest))
    if not rest:
        raise OptionError("no script is named", where=" ".join([launcher, *words]), fix="name a Python file")
    if "no-python" in options:
        raise OptionError("starts no Python script", where=f"{launcher} --no-python", fix="name the Python script")
    script = Script(rest[0], tuple(rest[1:]), "m" in options or "module" in options)
    if launcher == "torch.distributed.launch" and "use-env" not in options:
        script = replace(script, local_option="--local-rank")
    if launcher == "deepspeed" and "no-local-rank" not in options:
        script = replace(script, local_option="--local_rank")
    return _accelerated(script, options, words) if launcher == "accelerate" else _counted(kind, script, options)


def _counted(launcher: str, script: Script, options: dict[str, str]) -> Launch:
    """Return in how many processes torchrun or deepspeed start a script."""
    local = _count(launcher, options, "nproc-per-node", "num-gpus")
    nodes = _count(launcher, options, "nnodes", "num-nodes") or 1
    if launcher == "torchrun" and options.get("nproc-per-node") not in _ALL_GPUS:
        local = local or 1
    return Launch.on(script, nodes, local)


def _accelerated(script: Script, options: dict[str, str], words: Sequence[str]) -> Launch:
    """Return in how many processes accelerate starts a script; where it is there, it says by itself what it tells them."""
    nodes = _count("accelerate", options, "num-machines") or 1
    world = _count("accelerate", options, "num-processes")
    if find_spec("accelerate") is not None:
        found = accelerate_launch.asked(words)
        script = replace(script, environment=found.environment)
        nodes, world = found.machines or nodes, found.processes
    return Launch.on(script, nodes, None if world is None else world // nodes)


def _own_options(launcher: str, rest: list[str]) -> Iterator[tuple[str, str]]:
    """Take the launcher's options off the beginning of a command line, and yield them with their values."""
    while rest and rest[0].startswith("-"):
        word, given, value = rest.pop(0).partition("=")
        name = word.lstrip("-").replace("_", "-")
        if not given and name not in _FLAGS[launcher] and rest:
            value = rest.pop(0)
        yield name, value


def _count(launcher: str, options: dict[str, str], *names: str) -> int | None:
    for name in names:
        value = options.get(name)
        if value is None or value in _ALL_GPUS:
            continue
        last = value.rpartition(":")[2]  # torchrun takes "1:4" for between 1 and 4 machines
        if not last.isdigit() or int(last) < 1:
            raise OptionError(f"'{value}' is not a number", where=f"{launcher} --{name}", fix="give 1 or more")
        return int(last)
    return None
