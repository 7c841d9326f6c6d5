"""What ``torch.profiler`` shows of a live run: the profile of a rank from one moment of its script to another.

The file is written as ``triosim.reports.kineto`` writes that of a whole run, with the script's own annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from triosim.engine.recording import HostWait
from triosim.live.items import ProfileEnds
from triosim.output_files import writing_text
from triosim.reports.kineto.annotations import ScriptRange
from triosim.reports.kineto.rank_file import RankFile
from triosim.reports.kineto.run_facts import groups_of, run_facts
from triosim.tasks import Handle
from triosim.trace.step_facts import StepFacts


@dataclass(slots=True)
class _Profile:
    """The profile of one running rank: its tasks, and the ranges of its script that have ended, or have begun."""

    handles: list[Handle] = field(default_factory=list)
    ended: list[ScriptRange] = field(default_factory=list)
    begun: list[tuple[str, float, int]] = field(default_factory=list)
    waits: list[HostWait] = field(default_factory=list)


class Profiles:
    """The profiles that are being made of the tasks of one simulated rank, by the running ranks that it is simulated for.

    ``facts`` is what their files say of the step.
    """

    def __init__(self, facts: StepFacts) -> None:
        self._facts = facts
        self._open: dict[int, _Profile] = {}

    def begin(self, rank: int) -> None:
        """Begin the profile of a running rank."""
        self._open[rank] = _Profile()

    def add(self, handle: Handle) -> None:
        """Add a task that was issued."""
        for profile in self._open.values():
            profile.handles.append(handle)

    def waited(self, wait: HostWait) -> None:
        """Add a wait of the host for its GPU."""
        for profile in self._open.values():
            profile.waits.append(wait)

    def range_begins(self, rank: int, name: str, now: float) -> None:
        """Begin a range that a running rank's script names."""
        if rank in self._open:
            self._open[rank].begun.append((name, now, len(self._open[rank].handles)))

    def range_ends(self, rank: int, now: float) -> None:
        """End the innermost range of a running rank's script."""
        profile = self._open.get(rank)
        if profile is not None and profile.begun:
            name, began, first = profile.begun.pop()
            profile.ended.append(ScriptRange(name, began, now, first, len(profile.handles), len(profile.begun)))

    def end(self, rank: int, asked: ProfileEnds, now: float) -> None:
        """End a running rank's profile, and write it to the file that was asked for."""
        while self._open[rank].begun:
            self.range_ends(rank, now)
        profile = self._open.pop(rank)
        _write(asked, profile, self._facts)


def _write(asked: ProfileEnds, profile: _Profile, said: StepFacts) -> None:
    handles, ranges = profile.handles, sorted(profile.ended, key=lambda one: (one.first, one.begin, one.depth))
    facts = run_facts("model", {asked.owner.rank: handles})
    owner = replace(asked.owner, groups=groups_of(facts.groups), facts=said)
    with writing_text(asked.file) as file:
        RankFile(file, owner, facts).write(handles, profile.waits, ranges)
