"""The options of a search beside those of a run: how its space is declared, what is best, and how it is searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triosim.config import Option
from triosim.errors import OptionError

_SEARCH = "Search"

# fmt: off
SEARCH = (
    Option("script", metavar="'FILE ARG ...'", panel=_SEARCH, help=
        "A training script with its arguments instead of a trace or model: captured at each point without a GPU, as --gpus "
        "ranks would run it."),
    Option("vary_argument", "object", metavar="NAME=V,V", repeatable=True, panel=_SEARCH, help=
        "An argument of the script and its values: --tp=1,2,4. Repeatable.", python_help=
        "The arguments of the script that vary: ['--tp=1,2,4']."),
    Option("vary", "object", metavar="NAME=V,V", repeatable=True, panel=_SEARCH, help=
        "An option and its values: tp=1,2,4, recompute=none,full, data_parallel=ddp,zero1 or micro_batches=1*pp,2*pp. "
        "Repeatable. By default those that the model and the cluster have room for.", python_help=
        "What varies: {'tp': [1, 2, 4], 'data_parallel': ['ddp', 'zero1'], 'micro_batches': ['1*pp', '2*pp']}. By default what "
        "the model and the cluster have room for."),
    Option("space", metavar="FILE", panel=_SEARCH, help="A YAML file of options that vary, with lists of values under 'vary'."),
    Option("vary_topology", "object", metavar="KEY=V,V", repeatable=True, panel=_SEARCH, help=
        "A key of the topology and its values: 'bandwidth=25 GB/s..400 GB/s', inter_node.bandwidth=..., bandwidth.2=...; or "
        "dims, all ways to arrange the GPUs of a network of dimensions. Repeatable.", python_help=
        "Keys of the topology that vary: ['bandwidth.2=25 GB/s..400 GB/s', 'dims']."),
    Option("network_budget", "number", metavar="PRICE", panel=_SEARCH, help=
        "The most that the network may cost, by the price that the topology's file gives its links."),
    Option("without_rule", "object", metavar="NAME", repeatable=True, panel=_SEARCH, help=
        "A rule that points need not keep: node (tp within a node), heads, vocabulary, layers, ... Repeatable.", python_help=
        "Rules that points need not keep: ['node'] (tp within a node), heads, vocabulary, layers, ..."),
    Option("objective", default="step-time", metavar="NAME,NAME", panel=_SEARCH, help=
        "What is best: step-time, p90-step-time, tokens-per-second, cost, run-cost=TOKENS, energy, memory-headroom, "
        "network-price or fewest-gpus=RATE. Of several, the points that no other is better than in all."),
    Option("within", default="0", metavar="SHARE", panel=_SEARCH, help=
        "Simulate all points within this share of the best: 2%, say."),
    Option("top", "whole", 10, metavar="N", panel=_SEARCH, help="Simulate as many of the best points, in their order."),
    Option("memory_margin", metavar="SHARE", panel=_SEARCH, help=
        "By how much more memory than predicted a point must fit. By default the largest error of predicted steps, 1%."),
    Option("screen", "part", metavar="NETWORK", group="networks", panel=_SEARCH, help=
        "Search on this network, such as analytical, and simulate only the best that are found on the one that is asked for. "
        "It proves nothing."),
    Option("sampler", "choice", choices=("tpe", "cma-es", "random"), metavar="NAME", panel=_SEARCH, help=
        "Draw points by a sampler of Optuna, tpe, cma-es or random, instead of weighing all: for intervals, such as "
        "bucket_size=1 MB..200 MB, and spaces that are too large. It proves nothing."),
    Option("budget", metavar="N|TIME", panel=_SEARCH, help=
        "How many points a sampler tries, 200 by default, or for how long: 60s."),
    Option("seed", "whole", least=0, metavar="N", panel=_SEARCH, help=
        "The seed of a sampler: with one job, the same seed finds the same."),
    Option("study", metavar="FILE", panel=_SEARCH, help=
        "A file that keeps what is found, at once. The search goes on where it ended."),
    Option("executor", "choice", "local", choices=("local", "ray"), metavar="NAME", panel=_SEARCH, help=
        "What works on points: processes of this machine, or ray, the workers of a Ray cluster that runs."),
    Option("jobs", "whole", metavar="N", short="-j", panel=_SEARCH, help=
        "Points that are worked on at once. By default as many as there are cores.", python_help=
        "Processes, which work on a point each. By default 1: this one. With ray, by default all processors of the cluster."),
)
# fmt: on


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The values of ``SEARCH``, by name; shares are as they were written, see ``share``."""

    script: str | None = None
    vary_argument: Sequence[str] | None = None
    vary: Mapping[str, Sequence[Any]] | Sequence[str] | None = None
    space: str | None = None
    without_rule: Sequence[str] | None = None
    objective: str = "step-time"
    within: str = "0"
    top: int = 10
    memory_margin: str | None = None
    screen: Any = None
    vary_topology: Sequence[str] | None = None
    network_budget: float | None = None
    sampler: str | None = None
    budget: str | None = None
    seed: int | None = None
    study: str | None = None
    executor: str = "local"
    jobs: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SearchOptions:
        """Return the options of a search among those that are given. Raises ``OptionError`` for what they cannot be."""
        return cls(**{option.name: option.parse(given.get(option.name)) for option in SEARCH})


def share(text: str, where: str) -> float:
    """Return a share of 0 or more: 2%, or 0.02. Raises ``OptionError`` for anything else."""
    number = text.removesuffix("%")
    try:
        found = float(number) / (100.0 if number != text else 1.0)
    except ValueError:
        found = -1.0
    if not 0.0 <= found < 1.0:
        raise OptionError(f"'{text}' is not a share", where=where, fix="give one such as 2%")
    return found
