"""The options that several commands under ``triosim calibrate`` share."""

from __future__ import annotations

from typing import Annotated

import typer

from triosim.cli import options as o

OperatorName = Annotated[
    str | None,
    typer.Option(
        "--operator",
        metavar="NAME",
        show_default=False,
        help="softmax or layer_norm, where a table's columns and name do not say.",
    ),
]
Cache = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="warm|cold",
        show_default=False,
        **o.one_of("--cache", ("warm", "cold")),
        help="Which rows to take of operators that were measured both ways; by default warm forward, cold otherwise.",
    ),
]
Collective = Annotated[
    str | None,
    typer.Option(
        "--collective",
        metavar="NAME",
        show_default=False,
        help="Which collective DATA are about, where they do not say.",
    ),
]
