"""Joins the calls of a profiler file to the nodes of an execution trace, and checks that the two are of one run.

They are joined by record-function id, or, in files that have none, by their order on each thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triosim.errors import TraceError
from triosim.trace.formats.pytorch.execution_trace import ExecutionTraceNode
from triosim.trace.formats.pytorch.kineto import Profile, Span, Spans

#: How the names of nodes begin that the execution trace adds around threads and itself.
FRAME = "[pytorch|profiler|execution_trace|"
#: The part of the calls whose names may differ in the two files, and the part of a step's calls that one may lack.
_OTHER_NAMES, _LOST_CALLS = 0.5, 0.1


def join(profile: Profile, nodes: list[ExecutionTraceNode], where: str) -> dict[int, Span]:
    """Return the profiler's span of each node, by the node's number."""
    by_function = {span.function: span for span in (*profile.calls, *profile.steps) if span.function is not None}
    calls = [node for node in nodes if not node.name.startswith(FRAME)]
    if by_function:
        found = {node.number: by_function[node.function] for node in calls if node.function in by_function}
    else:
        found = _join_by_order(profile, calls)
    if not found:
        what = "the profiler file and the execution trace have no call in common"
        raise TraceError(what, where=where, fix="capture them in one run")
    if by_function:
        _check_run(profile, calls, found, where)
    return found


def _check_run(profile: Profile, nodes: Sequence[ExecutionTraceNode], found: Mapping[int, Span], where: str) -> None:
    """Raise ``TraceError`` where most calls of the execution trace have other names, or it lacks calls of the step."""
    others = [node for node in nodes if node.number in found and found[node.number].name != node.name]
    if len(others) > len(found) * _OTHER_NAMES:
        one = others[0]
        what = f"the execution trace has '{one.name}' where the profiler file has '{found[one.number].name}'"
        raise TraceError(what, where=where, fix="give two files of one run")
    window, known = last_step(profile), {node.function for node in nodes}
    calls = [
        call.function
        for call in profile.calls
        if call.function is not None
        and call.name.startswith("aten::")
        and (window is None or window.start <= call.start <= window.end)
    ]
    lost = sum(function not in known for function in calls)
    if lost > len(calls) * _LOST_CALLS:
        what = f"the execution trace has no node of {lost} of the {len(calls)} calls of the step: it is cut short"
        raise TraceError(what, where=where, fix="capture the two files in one run")


def _join_by_order(profile: Profile, calls: list[ExecutionTraceNode]) -> dict[int, Span]:
    """Join by names: each thread of the execution trace is a stretch of a thread of the profile."""
    threads: dict[int, list[ExecutionTraceNode]] = {}
    for node in sorted(calls, key=lambda node: node.function):
        threads.setdefault(node.thread, []).append(node)
    spans = {thread: list(found.spans) for thread, found in by_thread([*profile.calls, *profile.steps]).items()}
    found: dict[int, Span] = {}
    for nodes in threads.values():
        names = [node.name for node in nodes]
        for candidates in spans.values():
            # Spans of one microsecond may nest either way round: the order in which they were numbered tells.
            ordered = sorted(candidates, key=lambda span: (span.external or 0, span.start))
            listed = [span.name for span in ordered]
            starts = (at for at in range(len(listed) - len(names), -1, -1) if listed[at : at + len(names)] == names)
            if (start := next(starts, None)) is not None:
                found.update((node.number, ordered[start + index]) for index, node in enumerate(nodes))
                break
    return found


def last_step(profile: Profile) -> Span | None:
    """Return the last complete step: the profiler leaves a short one at the end when it stops between steps."""
    counts = dict.fromkeys(profile.steps, 0)
    for call in profile.calls:
        for step in profile.steps:
            if step.start <= call.start <= step.end:
                counts[step] += 1
    enough = 0.9 * max(counts.values(), default=0)
    complete = [step for step in profile.steps if counts[step] >= enough]
    return max(complete, key=lambda step: step.start) if complete else None


def by_thread(spans: list[Span]) -> dict[str, Spans]:
    """Return the spans of each thread."""
    threads: dict[str, list[Span]] = {}
    for span in spans:
        threads.setdefault(span.thread, []).append(span)
    return {thread: Spans(found) for thread, found in threads.items()}
