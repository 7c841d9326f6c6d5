"""The commands under ``triosim calibrate``: measure operators, fit models to what was measured, and judge fitted models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from triosim.cli.command import LazyGroup


class CalibrateCommands(LazyGroup):
    """The commands under ``triosim calibrate``, by name: their modules and first sentences."""

    lazy: ClassVar[Mapping[str, tuple[str, str]]] = {
        "compute": (
            "triosim.cli.calibrate.compute",
            "Fit the operator models to measured operators, with errors from cross-validation.",
        ),
        "evaluate": (
            "triosim.cli.calibrate.evaluate",
            "Show the errors of predictions on measured operators or collectives.",
        ),
        "network": (
            "triosim.cli.calibrate.network",
            "Fit the times of collectives to measurements, and write a topology with this calibration.",
        ),
        "missing": (
            "triosim.cli.calibrate.missing",
            "List the operators that a step's prediction leans on and nobody measured, the heaviest first.",
        ),
        "measure": (
            "triosim.cli.calibrate.measure",
            "Measure operators on the GPU (or CPU) at hand, for 'triosim calibrate compute'.",
        ),
        "launches": (
            "triosim.cli.calibrate.launches",
            "Measure what launching an operator costs the host, for --host-overhead.",
        ),
        "constants": (
            "triosim.cli.calibrate.constants",
            "List the constants that predictions rest on, with their errors in the fit and left out.",
        ),
        "collectives": (
            "triosim.cli.calibrate.collectives",
            "Measure collectives between the processes that torchrun has started, for 'triosim calibrate network'.",
        ),
    }


app = typer.Typer(
    cls=CalibrateCommands,
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def calibrate() -> None:
    """Measure operators, fit models of operators and collectives to measurements, and evaluate the fits."""
