"""Command lines that start a distributed job: the launcher (torchrun, accelerate launch, deepspeed), the script, and arguments.

A launcher says how many GPUs there are; what the script's arguments are, is for the framework's module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from triosim.config import Option
from triosim.errors import OptionError
from triosim.launch_files.correspondence import Correspondence, Entry, Framework, Given, Settings
from triosim.launch_files.hostfile import gpus_of, slots_of
from triosim.launch_files.job import Job
from triosim.launch_files.shell import Word, commands

_NODES = Option("nnodes", "whole", 1)
_PROCESSES = Option("nproc-per-node", "whole")
#: Arguments of torchrun that have no value.
_FLAGS = frozenset({"standalone", "no-python", "module", "run-path", "-m"})


def _read_gpus(given: Given) -> Settings:
    processes = given[_PROCESSES.name]
    return {} if processes is None else {"gpus": processes * given[_NODES.name]}


def _write_nothing(job: Job) -> Settings:
    return {}


TORCHRUN = Framework(
    "torchrun",
    "torchrun of PyTorch 2",
    (Correspondence("`--gpus`", (_NODES, _PROCESSES), _read_gpus, _write_nothing),),
    without_effect=frozenset(
        (
            *(
                "rdzv-",
                "master-",
                "local-",
                "log-",
                "redirects",
                "tee",
                "max-restarts",
                "monitor-interval",
                "start-method",
            ),
            *("node-rank", "role", "event-log-handler", "standalone", "no-python", "module", "run-path", "t", "r", "m"),
            *("numa-binding", "signals-to-handle", "virtual-local-rank"),
        )
    ),
)
_DEEPSPEED_FLAGS = frozenset({"no-ssh", "no-python", "module", "no-local-rank", "force-multi", "enable-each-rank-log"})
_DEEPSPEED_NODES, _DEEPSPEED_GPUS = Option("num-nodes", "whole"), Option("num-gpus", "whole")
_HOSTFILE, _INCLUDE, _EXCLUDE = (Option(name, "text", "") for name in ("hostfile", "include", "exclude"))


def _read_hosts(given: Given) -> Settings:
    """Return the GPUs that DeepSpeed's launcher takes: of the hosts of its file where that is here, or of those it names."""
    include, exclude, nodes = given[_INCLUDE.name], given[_EXCLUDE.name], given[_DEEPSPEED_NODES.name]
    each = given[_DEEPSPEED_GPUS.name]
    if include and exclude:
        raise given.refused(_EXCLUDE.name, f"is given together with --{_INCLUDE.name}", "give one of the two")
    file = Path(given.path).parent / given[_HOSTFILE.name]
    slots = slots_of(file) if given[_HOSTFILE.name] and file.exists() else {}
    gpus = gpus_of(slots, include, exclude, nodes, each) if slots or include else None
    if gpus is None and each is not None and not include:
        gpus = each * (nodes or 1)
    return {} if gpus is None else {"gpus": gpus}


DEEPSPEED_LAUNCHER = Framework(
    "deepspeed",
    "deepspeed's launcher",
    (
        Correspondence(
            "`--gpus`", (_DEEPSPEED_NODES, _DEEPSPEED_GPUS, _HOSTFILE, _INCLUDE, _EXCLUDE), _read_hosts, _write_nothing
        ),
    ),
    without_effect=frozenset((*_DEEPSPEED_FLAGS, "master-", "launcher", "launcher-args", "node-rank", "ssh-", "save-")),
)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that starts a job: its launcher's entries, if it has one, the script and the script's words.

    ``launcher`` is torchrun, accelerate, deepspeed, or empty for arguments alone.
    """

    launcher: str
    entries: dict[str, Entry]
    script: str
    words: tuple[Word, ...]


def launch_command(text: str, path: str, refuse: Callable[[OptionError], None]) -> Command:
    """Return the command that a script runs to start a job. Raises ``OptionError`` where there is none, or several."""
    found = [command for words in commands(text, path, refuse) for command in _launches(words, path, refuse)]
    if not found:
        fix = "give a script that runs torchrun, accelerate launch or deepspeed, or a file of arguments (--name value)"
        raise OptionError("starts no job that triosim knows", where=path, fix=fix)
    with_launcher = [one for one in found if one.launcher]
    if len(with_launcher) > 1:
        raise OptionError(f"starts {len(with_launcher)} jobs", where=path, fix="keep one in the file")
    if with_launcher:
        return with_launcher[0]
    return Command("", {}, "", tuple(word for one in found for word in one.words))


def _launches(words: list[Word], path: str, refuse: Callable[[OptionError], None]) -> Iterator[Command]:
    if words[0].text.startswith("--"):
        yield Command("", {}, "", tuple(words))
        return
    names = [PurePath(word.text).name for word in words]
    for at, name in enumerate(names):
        if name == "torchrun":
            yield _launched("torchrun", words[at + 1 :], _FLAGS, path)
        elif (
            name == "-m"
            and at + 1 < len(names)
            and names[at + 1] in ("torch.distributed.run", "torch.distributed.launch")
        ):
            yield _launched("torchrun", words[at + 2 :], _FLAGS, path)
        elif name == "accelerate" and names[at + 1 : at + 2] == ["launch"]:
            yield _launched("accelerate", words[at + 2 :], _ACCELERATE_FLAGS, path)
        elif name == "deepspeed" and at + 1 < len(names):
            yield _launched("deepspeed", words[at + 1 :], _DEEPSPEED_FLAGS, path)
        elif name.startswith("python") and names[at + 1 : at + 2] and names[at + 1].endswith(".py"):
            yield Command("python", {}, words[at + 1].text, tuple(words[at + 2 :]))
        else:
            continue
        return


#: Arguments of accelerate launch that have no value.
_ACCELERATE_FLAGS = frozenset(
    {"multi_gpu", "use_fsdp", "use_deepspeed", "use_megatron_lm", "use_parallelism_config", "cpu", "tpu", "module", "no_python",
     "same_network", "quiet", "debug", "enable_cpu_affinity", "dynamo_use_fullgraph", "dynamo_use_dynamic"}
)  # fmt: skip


def _launched(launcher: str, words: Sequence[Word], flags: frozenset[str], path: str) -> Command:
    """Return a launcher's command: its own arguments end at the script, the first word that is no argument of it."""
    entries: dict[str, Entry] = {}
    at = 0
    while at < len(words) and words[at].text.startswith("-"):
        name, separator, value = words[at].text.lstrip("-").partition("=")
        name = name if launcher == "accelerate" else name.replace("_", "-")
        where = f"{path}:{words[at].line}: {words[at].text.partition('=')[0]}"
        if separator or name in flags or name in ("m", "module"):
            entries[name] = Entry(value if separator else True, where)
        elif at + 1 < len(words):
            at += 1
            entries[name] = Entry(words[at].text, where)
        at += 1
    script = words[at].text if at < len(words) else ""
    return Command(launcher, entries, script, tuple(words[at + 1 :]))


def arguments(words: Sequence[Word], path: str) -> dict[str, Entry]:
    """Return a script's arguments by name, without dashes ahead; one without a value is True, several values are a list.

    Raises ``OptionError`` for a value ahead of all arguments, and for an argument that is given twice.
    """
    found: dict[str, Entry] = {}
    values: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.text.startswith("--") and len(word.text) > 2:
            name, separator, value = word.text[2:].partition("=")
            where = f"{path}:{word.line}: --{name}"
            if name in found:
                raise OptionError(
                    "is given twice", where=where, fix=f"it is already at {found[name].where.rpartition(':')[0]}"
                )
            found[name] = Entry(True, where)
            values[name] = [value] if separator else []
        elif name:
            values[name].append(word.text)
    for key, given in values.items():
        if given:
            found[key] = Entry(given[0] if len(given) == 1 else given, found[key].where)
    return found
