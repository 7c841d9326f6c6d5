"""``triosim simulate --rules astra-sim``: a study of ASTRA-sim's, repeated to the nanosecond."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from triosim.cli.command import LaterModule, give_answer
from triosim.config import Option
from triosim.config.option import CHAKRA
from triosim.errors import OptionError
from triosim.output_files import check_outputs

input_files = LaterModule("chakra.inputs.files")
study = LaterModule("engine.astra_sim.study")
astra = LaterModule("engine.astra_sim.run")
cycles_table = LaterModule("reports.terminal.cycles_table")

# fmt: off
#: The options that choose other rules than the engine's, and those of ASTRA-sim's command line.
RULES = Option("rules", "choice", choices=("astra-sim",), metavar="NAME", panel=CHAKRA, help=
    "Simulate graphs by another simulator's rules: astra-sim, to the nanosecond.")
OPTIONS = (
    RULES,
    Option("backend", "choice", "congestion-unaware", choices=("congestion-unaware", "congestion-aware"), metavar="NAME",
           panel=CHAKRA, help="With --rules: ASTRA-sim's network, congestion-unaware or congestion-aware."),
    Option("num_queues_per_dim", "whole", 1, metavar="N", panel=CHAKRA, help="With --rules: the queues of each dimension."),
    Option("injection_scale", "number", 1.0, metavar="FACTOR", panel=CHAKRA, help="With --rules: scales endpoint-delay."),
    Option("rendezvous_protocol", "flag", False, panel=CHAKRA, help=
        "With --rules: a receiver asks for each message before it is sent."),
)
# fmt: on

#: What else of a command line is followed.
_FOLLOWED = {"topology", "system", "memory", "groups", "output", "format", "quiet", "fold"}


def simulate_by_rules(prefix: str | None, given: Mapping[str, Any]) -> None:
    """Simulate graphs by the rules that are asked for, and show when each rank ends."""
    _check(prefix, given)
    graphs = Path(str(prefix))
    named = {name: given[name] for name in ("system", "memory", "groups")}
    files = input_files.input_files(graphs, network=given["topology"], **named)
    for name, file, example in (("topology", files.network, "network.yml"), ("system", files.system, "system.json")):
        if file is None:
            raise OptionError(
                f"is missing, which {given['rules']}'s rules need", where=f"--{name}", fix=f"give {example}"
            )
    check_outputs(given["output"], reading=[given["topology"], *filter(None, named.values())])
    found = study.read_study(
        study.StudyFiles(graphs, files.network, files.system, files.memory, files.groups, notes=files.notes)
    )
    settings = settings_of(given)
    data = study.plain(found, study.simulate_study(found, settings, fold=given["fold"]), settings)
    give_answer(given, json.dumps(data, indent=2) + "\n", lambda: [cycles_table.render(data)])


def settings_of(given: Mapping[str, Any]) -> Any:
    """Return the settings that a command line gives."""
    names = ("num_queues_per_dim", "injection_scale", "rendezvous_protocol")
    return astra.Settings(given["backend"], *(given[name] for name in names))


def _check(prefix: str | None, given: Mapping[str, Any]) -> None:
    if prefix is None:
        raise OptionError("Missing argument 'TRACE'", fix="give the prefix of Chakra graphs")
    own = {option.name: option for option in OPTIONS}
    for name, value in given.items():
        if name not in own and name not in _FOLLOWED and value not in (None, [], False):
            flag = f"--{name.replace('_', '-')}"
            raise OptionError(f"has no effect with --rules {given['rules']}", where=flag, fix="leave it out")


def refuse_without_rules(given: Mapping[str, Any]) -> None:
    """Raise ``OptionError`` for an option that only other rules follow, where none are asked for."""
    for option in OPTIONS[1:]:
        if given[option.name] != option.parsed_default:
            raise OptionError(
                "has no effect without --rules", where=option.where, fix="give --rules astra-sim, or leave it out"
            )
