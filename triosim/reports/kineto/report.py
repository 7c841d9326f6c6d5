"""The report ``kineto``: a folder with a file for each rank, as PyTorch's profiler would have written it.

Tools that read its profiles (Holistic Trace Analysis, TensorBoard, Perfetto) read these. Kernels run when the simulation ran
them; a transfer is a kernel named like NCCL's, from its rank's arrival to its end, as NCCL's kernels wait for partners too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from triosim.errors import OptionError
from triosim.output_files import PathLike, check_folder, writing_folder, writing_text
from triosim.reports.kineto.rank_file import RankFile
from triosim.reports.kineto.run_facts import groups_of, run_facts
from triosim.results.report import Report
from triosim.results.result import Result
from triosim.results.uncertainty import lasting_doubts
from triosim.tasks import Communicator, Handle
from triosim.trace.formats.pytorch.kineto_file import ProfiledRank
from triosim.trace.step_facts import StepFacts


class Kineto(Report):
    """Profiles of all ranks; its result holds the handles of all tasks."""

    records = ("timeline",)
    is_folder = True

    @classmethod
    def check(cls, path: PathLike) -> None:
        """Raise ``OutputError`` where no folder can be, or where profiles of another run are."""
        check_folder(path, "profiles", "rank-*.json.gz")

    def write(self, result: Result, path: PathLike) -> None:
        """Write ``rank-N.json.gz`` of each rank. Raises ``OptionError`` where the run was not recorded."""
        if result.recording is None or result.recording.handles is None:
            raise OptionError("this result holds no timeline", fix="simulate with timeline=True")
        self.check(path)
        by_rank: dict[int, list[Handle]] = defaultdict(list)
        for handle in result.recording.handles:
            by_rank[handle.rank].append(handle)
        waits = {record.rank: record.host_waits for record in result.recording.ranks}
        facts = run_facts(str(result.inputs.get("trace", {}).get("model", "model")), by_rank, result.memory)
        with writing_folder(path) as folder:
            for rank, handles in sorted(by_rank.items()):
                with writing_text(folder / f"rank-{rank}.json.gz") as file:
                    RankFile(file, _owner(result, rank, facts.groups), facts).write(handles, waits.get(rank, ()))


def _owner(result: Result, rank: int, numbers: Mapping[Communicator, int]) -> ProfiledRank:
    """Return a rank, its GPU, and the process groups that it is in; GPUs are numbered on their host."""
    topology = result.topology
    device = rank
    if topology is not None and topology.host_of(rank) is not None:
        host = topology.host_of(rank)
        device = sum(topology.host_of(other) == host for other in range(rank))
    gpu = str(result.inputs.get("trace", {}).get("gpu", "GPU"))
    doubts = lasting_doubts(result.data.doubts, result.step_time_s)
    facts = replace(result.facts or StepFacts(), doubts=doubts)
    return ProfiledRank(rank, result.world, gpu, device, groups_of(numbers, rank), facts)
