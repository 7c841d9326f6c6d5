"""The options of the command line for the conditions under which a system runs: unequal, slow and failing GPUs and links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

CONDITIONS = "Conditions"


def _option(name: str, metavar: str, help: str) -> Any:
    """Return what typer is to know of an option."""
    return typer.Option(name, metavar=metavar, rich_help_panel=CONDITIONS, show_default=False, help=help)


ComputeSlowdown = Annotated[
    str | None,
    _option(
        "--compute-slowdown",
        "FACTOR",
        "Computation is so much slower beside a collective: 1.2, or all_reduce=1.2,send=1.1.",
    ),
]
CollectiveSlowdown = Annotated[
    str | None,
    _option(
        "--collective-slowdown",
        "FACTOR",
        "A collective is so much slower while a member computes: 1.1, or all_reduce=1.1.",
    ),
]
SlowGpus = Annotated[
    list[str] | None,
    _option("--slow-gpus", "RANKS=FACTOR", "GPUs that take so many times longer: 3=1.5, or 4-7,12=2. Repeatable."),
]
GpuKinds = Annotated[
    list[str] | None,
    _option("--gpu-kinds", "RANKS=GPU", "GPUs of another kind than the others: 4-7=V100-SXM2-32GB. Repeatable."),
]
Stragglers = Annotated[
    str | None,
    _option(
        "--stragglers",
        "DISTRIBUTION",
        "GPUs are slower by chance: uniform, exponential or lognormal,spread=0.1,seed=1,every=iteration.",
    ),
]
SlowLinks = Annotated[
    str | None,
    _option(
        "--slow-links",
        "DISTRIBUTION",
        "Links are slower by chance: uniform, exponential or lognormal,spread=9,seed=1.",
    ),
]
Events = Annotated[
    list[str] | None,
    _option(
        "--event",
        "EVENT",
        "What happens at a time: at=0.5s,gpu=3,slowdown=2 or at=1s,from=gpu0,to=gpu1,bandwidth=1GB/s. Repeatable.",
    ),
]
Draws = Annotated[
    int,
    typer.Option(
        "--draws",
        metavar="N",
        rich_help_panel=CONDITIONS,
        help="Draw what is left to chance (stragglers, slow links, tokens of ep) so many times; show how steps are spread.",
    ),
]

#: The conditions, by the names that ``triosim.simulate`` has for them.
CONDITION_OPTIONS: Mapping[str, Any] = {
    "compute_slowdown": ComputeSlowdown,
    "collective_slowdown": CollectiveSlowdown,
    "slow_gpus": SlowGpus,
    "gpu_kinds": GpuKinds,
    "stragglers": Stragglers,
    "slow_links": SlowLinks,
    "events": Events,
}
