"""The command ``triosim calibrate launches``: measures what launching an operator costs the host at hand."""

from __future__ import annotations

import sys
from typing import Any

from triosim.cli import options as o
from triosim.cli.command import LaterModule
from triosim.config import Option
from triosim.config.option import GENERAL
from triosim.units import format_time

benchmarks = LaterModule("tracer.benchmarks.launches")

# fmt: off
OPTIONS = (
    Option("output", required=True, metavar="FILE", short="-o", panel=GENERAL, help=
        "The configuration file to write (.yaml), for --config."),
    Option("device", metavar="cpu|cuda", panel=GENERAL, help="The device to measure. By default the GPU, if there is one."),
)
# fmt: on


@o.takes(*OPTIONS)
def command(**given: Any) -> None:
    """Measure what launching an operator costs the host, for --host-overhead.

    It is the host's time for training steps of a tiny network, over the operators that they launch.

    [bold]Examples[/]

    [cyan]triosim calibrate launches -o host.yaml[/]
    [cyan]triosim simulate gpt2 --gpu H100 --config host.yaml[/]
    """
    benchmarks.check_name(given["output"])
    found = benchmarks.measure(given["device"])
    benchmarks.write(found, given["output"])
    said = f"launching an operator costs the host {format_time(found.seconds)} ({found.device}, {found.software})"
    print(f"triosim: {said}; use it: --config {given['output']}", file=sys.stderr)
