"""The command that simulates a result again."""

from __future__ import annotations

from triosim.config import RunConfig
from triosim.config.commands import simulate_command
from triosim.errors import TriosimError
from triosim.results.result import Result


def command_of(result: Result, trace: str = "TRACE") -> str:
    """Return the command that makes a result again by its options; ``trace`` is what it was made of, if it names no file.

    Of a script that ran live, it is the command that ran it.
    """
    if result.inputs.get("command"):
        return str(result.inputs["command"])
    values = dict(result.inputs.get("config", {}))
    subject = str(values.pop("trace", None) or trace)
    try:
        return simulate_command(subject, RunConfig.of(**values))
    except TriosimError:  # options of a plug-in that is not here
        return f"triosim simulate {subject} --config result.json"
