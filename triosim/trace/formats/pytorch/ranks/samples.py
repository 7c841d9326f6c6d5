"""The samples of a step of several ranks, as far as their profiles tell.

A rank's samples are the first dimension of its input, as of a profile of one GPU, once for each backward pass: every operator
that is differentiated ran as often, or a multiple of that. Ranks share samples where they exchange messages (a pipeline), in
groups that are described as tensor, pipeline, context or sequence parallel, and in groups that are described as nothing of
that kind where the forward pass reduces more than a number for each sample.
"""

from __future__ import annotations

import bisect
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from triosim.trace.autograd import ENGINE_PREFIX
from triosim.trace.formats import tensor_categories
from triosim.trace.formats.pytorch.joined_calls import last_step
from triosim.trace.formats.pytorch.kineto import Profile, Work
from triosim.trace.formats.pytorch.profiled_step import OPTIMIZER_STEP, ProfiledStep
from triosim.trace.formats.pytorch.ranks.nccl_kernels import Part, purposes_of
from triosim.trace.formats.pytorch.ranks.rank_calls import RankCalls

#: Words in descriptions of process groups, as PyTorch's device meshes, Megatron-LM and triosim write them.
_OF_DATA = frozenset(("dp", "ddp", "fsdp", "hsdp", "zero", "data", "replicate", "shard", "ep", "expert"))
_OF_PARTS = frozenset(("tp", "tensor", "pp", "pipe", "pipeline", "cp", "context", "sp", "sequence", "mp", "model"))
#: Those of groups that divide each sample.
_OF_SEQUENCES = frozenset(("cp", "context"))
_REDUCTIONS = ("all_reduce", "reduce_scatter")


@dataclass(slots=True)
class RankBatch:
    """The samples of one input of a rank, how often each operator that is differentiated ran, and who works on them too.

    ``samples`` is 0 where they are not known; ``notes`` are of what its step has not. ``peers`` are ranks that messages go to
    or come from.
    """

    samples: int
    runs: Mapping[str, int]
    notes: tuple[str, ...] = ()
    together: list[tuple[int, ...]] = field(default_factory=list)
    peers: set[int] = field(default_factory=set)


def rank_batch(profile: Profile, calls: RankCalls | None, parts: Iterable[tuple[Work, Part]]) -> RankBatch:
    """Return that of a rank, given its ``calls``. ``parts`` are what its kernels of NCCL carry, with the kernels."""
    samples, runs = 0, Counter[str]()
    if calls is not None and calls.has_shapes:
        samples = tensor_categories.batch_size(calls.found, calls.step.hints) or 0
        runs = forward_runs(calls.step)
    found = RankBatch(samples, runs, () if calls is None else calls.notes)
    forward = _ForwardPasses(profile)
    descriptions = purposes_of(profile.distributed)
    for work, part in parts:
        if part.peer is not None:
            found.peers.add(part.peer)
        elif part.members not in found.together:
            reduces = part.kind in _REDUCTIONS and part.nbytes > 8 * samples and forward.has(work.launched, work.thread)
            if _share_samples(descriptions.get(part.group, ""), reduces=reduces):
                found.together.append(part.members)
    return found


def parts_of_samples(groups: Mapping[str, Sequence[Sequence[int]]]) -> int:
    """Return in how many parts the samples of families of groups are, by their names: of context parallelism."""
    return max((len(some[0]) for name, some in groups.items() if _words(name) & _OF_SEQUENCES), default=1)


def works_with_others(profile: Profile) -> bool:
    """Whether a rank's messages or the descriptions of its groups say that others work on its samples too."""
    described = any(_share_samples(one, reduces=False) for one in purposes_of(profile.distributed).values())
    messages = ("send", "recv")
    return described or any(call.arguments.get("Collective name") in messages for call in profile.calls)


def forward_runs(step: ProfiledStep) -> Counter[str]:
    """Return how often operators of each name ran that are differentiated, but not those that an optimizer asks for again."""
    again = {step.by_call.get(call.node.number) for call in step.calls if _is_of_optimizer(call.annotations)}
    differentiated = {one.forward for one in step.by_call.values() if one.forward is not None} - again
    return Counter(one.name for one in differentiated if one is not None)


def _is_of_optimizer(annotations: Iterable[str]) -> bool:
    return any(name.startswith(OPTIMIZER_STEP) for name in annotations)


def passes(runs: Iterable[Mapping[str, int]]) -> int:
    """Return how many backward passes there were, of which every operator ran in each, on all the ranks of ``runs``."""
    return max(1, math.gcd(*(count for one in runs for count in one.values())))


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples that each rank works on, alone or with others, by rank, and those of all; None where they are not known."""

    by_rank: Mapping[int, int]
    total: int | None


def samples(ranks: Mapping[int, RankBatch], like: Sequence[int]) -> Samples:
    """Return the samples of a step; ``like[rank]`` is the rank whose profile stands for a rank."""
    by_rank: dict[int, int] = {}
    shares: dict[int, Fraction] = {}
    for members in _components(ranks):
        known = [rank for rank in members if rank in ranks]
        together = [ranks[rank] for rank in known]
        first = together[0].samples * passes(one.runs for one in together)
        by_rank.update((rank, first) for rank in known if first)
        if first:
            shares.update((rank, Fraction(first, len(members))) for rank in known)
    if len(shares) < len(ranks):
        return Samples(by_rank, None)
    total = sum((shares[rank] for rank in like), Fraction(0))
    return Samples(by_rank, int(total) if total.denominator == 1 else None)


def _components(ranks: Mapping[int, RankBatch]) -> Iterator[list[int]]:
    """Yield the ranks that share samples, those without a profile too, each set in order."""
    linked: dict[int, set[int]] = {rank: {rank} for rank in ranks}
    for rank, one in ranks.items():
        for members in ([rank, *one.peers], *one.together):
            for member in members:
                linked.setdefault(member, {member}).add(rank)
                linked[rank].add(member)
    seen: set[int] = set()
    for rank in sorted(ranks):
        if rank in seen:
            continue
        found, left = {rank}, [rank]
        while left:
            new = linked[left.pop()] - found
            found |= new
            left.extend(new)
        seen |= found
        yield sorted(found)


def _share_samples(description: str, *, reduces: bool) -> bool:
    words = _words(description)
    if words & _OF_DATA:
        return False
    return bool(words & _OF_PARTS) or reduces


def _words(description: str) -> set[str]:
    return set(re.findall("[a-z]+", description.lower()))


class _ForwardPasses:
    """The moments of a step that are not in its backward passes: neither on autograd's threads nor after its last call."""

    def __init__(self, profile: Profile) -> None:
        step = last_step(profile)
        begin, end = (step.start, step.end) if step is not None else (float("-inf"), float("inf"))
        calls = sorted((one for one in profile.calls if begin <= one.start <= end), key=lambda one: one.start)
        backward = [one for one in calls if one.name.startswith(ENGINE_PREFIX)]
        self._threads = {one.thread for one in backward} - {one.thread for one in calls[:1]}
        self._starts = [one.start for one in backward]
        self._ends = [one.end for one in backward]

    def has(self, moment: float, thread: str | None) -> bool:
        """Whether a moment of a thread is one of them."""
        if not self._starts or thread in self._threads:
            return not self._starts
        before = bisect.bisect_right(self._starts, moment)
        return before < len(self._starts) and (before == 0 or self._ends[before - 1] < moment or bool(self._threads))
