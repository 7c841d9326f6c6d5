"""The options of all points of a search for a job that a launch file has: its model, batch and numerics.

What the file says of parallelisms, micro-batches and recomputation is searched for, unless axes are declared: then the others
of these are as in the file. The global batch is the job's in any case.
"""

from __future__ import annotations

from triosim.config import RunConfig
from triosim.configuration_search.point import Point
from triosim.configuration_search.spaces.cluster import cluster_of
from triosim.configuration_search.spaces.subject import SearchSubject
from triosim.gpus import DEFAULT_GPU
from triosim.launch_files.job import job_of

#: What a default space searches for.
_SEARCHED = ("parallel", "micro_batch_size", "recompute", "sequence_parallel", "virtual_stages", "schedule")


def of_all_points(subject: str, config: RunConfig, *, declared: bool) -> RunConfig:
    """Return the options of all points, where some axes are ``declared`` or none. Raises ``TriosimError`` for no such job."""
    gpus = config.gpus or cluster_of(SearchSubject("", "", DEFAULT_GPU), config, Point(())).gpus
    batch = job_of(subject, config, gpus).global_batch_size
    freed = dict.fromkeys(() if declared else _SEARCHED)
    return config.replaced(**freed, micro_batches=None, batch_size=None, global_batch_size=batch)
