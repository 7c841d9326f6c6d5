"""The options of the command line for the conditions under which a system runs: unequal, slow and failing GPUs and links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

CONDITIONS = "Conditions"

ComputeSlowdown = Annotated[
    str | None,
    typer.Option(
        "--compute-slowdown",
        metavar="FACTOR",
        rich_help_panel=CONDITIONS,
        show_default=False,
        help="Computation is so much slower beside a collective: 1.2, or all_reduce=1.2,send=1.1, or a CSV table.",
    ),
]
CollectiveSlowdown = Annotated[
    str | None,
    typer.Option(
        "--collective-slowdown",
        metavar="FACTOR",
        rich_help_panel=CONDITIONS,
        show_default=False,
        help="A collective is so much slower while a member computes: 1.1, or all_reduce=1.1, or a CSV table.",
    ),
]
SlowGpus = Annotated[
    list[str] | None,
    typer.Option(
        "--slow-gpus",
        metavar="RANKS=FACTOR",
        rich_help_panel=CONDITIONS,
        show_default=False,
        help="GPUs that take so many times longer: 3=1.5, or 4-7,12=2. Repeatable.",
    ),
]
GpuKinds = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-kinds",
        metavar="RANKS=GPU",
        rich_help_panel=CONDITIONS,
        show_default=False,
        help="GPUs of another kind than the others: 4-7=V100-SXM2-32GB. Repeatable.",
    ),
]
Stragglers = Annotated[
    str | None,
    typer.Option(
        "--stragglers",
        metavar="DISTRIBUTION",
        rich_help_panel=CONDITIONS,
        show_default=False,
        help="GPUs are slower by chance: uniform, exponential or lognormal,spread=0.1,seed=1,every=iteration.",
    ),
]
SlowLinks = Annotated[
    str | None,
    typer.Option(
        "--slow-links",
        metavar="DISTRIBUTION",
        rich_help_panel=CONDITIONS,
        show_default=False,
        help="Links are slower by chance: uniform, exponential or lognormal,spread=9,seed=1.",
    ),
]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="EVENT",
        rich_help_panel=CONDITIONS,
        show_default=False,
        help="What happens at a time: at=0.5s,gpu=3,slowdown=2 or at=1s,from=gpu0,to=gpu1,bandwidth=1GB/s. Repeatable.",
    ),
]


def given(**options: Any) -> Mapping[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value}
