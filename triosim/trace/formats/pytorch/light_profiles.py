"""Joins operator times of lightly profiled steps to the calls of a fully profiled one.

Recording shapes and the execution trace slows small calls down by half and more; Kineto alone costs a few percent. So one
step gives the calls, and the median one of the others their times; on a host without a GPU each call takes the median of all
steps. Medians leave out disturbances of single calls, so they are stretched to the length of the median step.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from statistics import median

from triosim.trace.autograd import ENGINE_PREFIX
from triosim.trace.formats.pytorch.kineto import Profile, Span
from triosim.trace.formats.pytorch.profiled_step import CATEGORY_PREFIX

#: Steps with a smaller share of calls in common are not the same step.
LEAST_IN_COMMON = 0.9


def with_light_times(structure: Profile, others: list[Profile]) -> Profile | None:
    """Return the median one of the ``others``, its outermost calls numbered as those of ``structure``.

    Calls are joined in their order, by name. A call of ``structure`` alone (a data loader's) is added with its own time,
    scaled to the lighter profiling. Steps with too few calls in common are left out; None when all are. The host's time
    between two calls counts as the first one's.
    """
    threads = _threads(structure)
    known = outermost(structure, threads)
    steps = [step for other in others if (step := _Step.of(other, outermost(other, threads), known)) is not None]
    if not steps:
        return None
    steps.sort(key=lambda step: step.seconds)
    middle = steps[len(steps) // 2]
    own = [call.end - call.start for call in known]
    faster = middle.seconds / sum(own[index] for index in middle.calls)
    lengths = [
        median([step.lengths[index] for step in steps if index in step.lengths] or [faster * own[index]])
        for index in range(len(known))
    ]
    usual = median(step.seconds for step in steps) / sum(lengths[index] for index in middle.calls)
    for span in middle.profile.calls:
        span.function = None
    moment = 0.0
    for index, numbered in enumerate(known):
        call = middle.calls.get(index)
        if call is None:
            call = Span(numbered.name, numbered.thread, moment, moment + lengths[index], numbered.order)
            middle.profile.calls.append(call)
        if index in middle.calls and not middle.profile.work:
            call.end = call.start + usual * lengths[index]
        moment = call.end
        call.function = numbered.function
        call.after = median([step.pauses[index] for step in steps if index in step.pauses] or [0.0])
    return middle.profile


@dataclass(slots=True)
class _Step:
    """A lightly profiled step: its calls, their lengths and pauses, by the index of the call in the fully profiled step."""

    profile: Profile
    calls: dict[int, Span]
    lengths: dict[int, float]
    pauses: dict[int, float]

    @property
    def seconds(self) -> float:
        return sum(self.lengths.values())

    @staticmethod
    def of(profile: Profile, calls: list[Span], known: list[Span]) -> _Step | None:
        """Join a step's calls to the known ones; None when it is another step."""
        matcher = SequenceMatcher(None, [_key(call) for call in known], [_key(call) for call in calls], autojunk=False)
        blocks = matcher.get_matching_blocks()
        pairs = {block.a + number: block.b + number for block in blocks for number in range(block.size)}
        if len(pairs) < LEAST_IN_COMMON * max(len(known), len(calls)) or not pairs:
            return None
        pauses = _pauses(calls)
        joined = {index: calls[own] for index, own in pairs.items()}
        lengths = {index: call.end - call.start for index, call in joined.items()}
        return _Step(profile, joined, lengths, {index: pauses[own] for index, own in pairs.items()})


def _key(call: Span) -> tuple[str, str]:
    return call.thread, call.name


def outermost(profile: Profile, threads: set[str]) -> list[Span]:
    """Return the outermost calls of some threads, thread by thread; annotations are no calls."""
    found: list[Span] = []
    ordered = sorted(profile.calls, key=lambda span: (span.thread, span.start, -span.end, span.order))
    thread, covered = "", 0.0
    for span in ordered:
        if span.thread not in threads:
            continue
        if span.thread != thread:
            thread, covered = span.thread, float("-inf")
        if span.start < covered:
            continue
        if not span.annotation:
            found.append(span)
        if not span.annotation or span.name.startswith(CATEGORY_PREFIX):
            covered = span.end
    return found


def _threads(profile: Profile) -> set[str]:
    """Return the thread with the most calls and those of autograd; others, such as a loader's, keep their own time."""
    counts: dict[str, int] = {}
    for call in profile.calls:
        counts[call.thread] = counts.get(call.thread, 0) + 1
    most = {max(counts, key=lambda thread: counts[thread])} if counts else set()
    return most | {call.thread for call in profile.calls if call.name.startswith(ENGINE_PREFIX)}


def _pauses(calls: list[Span]) -> list[float]:
    """Return for each call the time until the next one begins on any thread, without that of other calls."""
    order = sorted(range(len(calls)), key=lambda index: calls[index].start)
    found = [0.0] * len(calls)
    covered = float("-inf")
    for index, following in pairwise(order):
        covered = max(covered, calls[index].end)
        found[index] = max(0.0, calls[following].start - covered)
    return found
