"""Measured training steps against what triosim predicts from the sizes alone: step times, throughput, memory.

``python validation/end_to_end.py --table FILE`` reads a table in a known format, prints every row with what is predicted of
each of its quantities and the error, and at the end the mean absolute error of each. Without a table, all that are there. A
row that is broken, or cannot be simulated, is said on standard error and left out; the exit status is 2 where none is
predicted. ``--reuse FILE`` takes what ``--format csv`` printed before instead of simulating. ``--commands`` prints the command
line of each row instead: what is predicted is what it says.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from triosim.errors import OptionError, TriosimError
from triosim.output_files import check_outputs
from triosim.reports.pictures.plot import check_plot
from validation.report import DataAbsent
from validation.steps import formats, picture, printed
from validation.steps.command import CommandFormat
from validation.steps.errors import GroupSummary, Predicted, Refused, Summary, groups, source_of, summaries
from validation.steps.rows import Format, Prediction, Row, spaced
from validation.steps.sources import Source, sources

Table = tuple[Format, str, list[Row]]
Asked = tuple[str, str, Row, Prediction | None]


def judged(*, whole: bool, jobs: int) -> tuple[list[Source], list[Predicted], list[Refused]]:
    """Predict a fixed sample of each table, or the whole tables; return the sources, their rows, and what was refused.

    Raises ``DataAbsent`` without any table.
    """
    refused: list[Refused] = []
    every = list(formats.shared(refuse=lambda *broken: refused.append(Refused(*broken))))
    if not every:
        raise DataAbsent("no table of steps is there (set TRIOSIM_DATA)")
    readable = Counter(source_of(name, row.part) for _, name, found in every for row in found)
    if not whole:
        every = [(kind, name, kind.sampled(found)) for kind, name, found in every]
    found: list[Predicted] = []
    for one in predicted(every, jobs):
        if isinstance(one, Predicted):
            found.append(one)
        else:
            refused.append(one)
    return sources(found, readable, refused), found, refused


def predicted(
    tables: Sequence[Table], jobs: int = 1, known: printed.Known | None = None
) -> Iterator[Predicted | Refused]:
    """Predict every quantity of every row, in order; in several processes if asked for. ``known`` are predicted already.

    Rows of one command are predicted once.
    """
    every = [(kind.name, name, one) for kind, name, found in tables for row in found for one in (row, *row.also)]
    asked = [(*one, (known or {}).get(printed.key(one[1], one[2]))) for one in every]
    first: dict[tuple[object, ...], int] = {}
    same = [first.setdefault(_prediction_key(*one), place) for place, one in enumerate(asked)]
    chosen = [asked[place] for place in first.values()]
    found: dict[int, Predicted | Refused] = {}
    with ExitStack() as stack:
        each: Any = map
        if jobs > 1:
            pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
            each = stack.enter_context(pool).map
        said = iter(each(_predicted, chosen))
        for place, (equal, (_, name, row, _)) in enumerate(zip(same, asked, strict=True)):
            if equal == place:
                found[place] = next(said)
            yield found[equal].of_row(name, row)


def _prediction_key(kind: str, name: str, row: Row, known: Prediction | None) -> tuple[object, ...]:
    """Return what decides a prediction: the command, where that is all, else the very row."""
    form = formats.named(kind)
    if known is None and isinstance(form, CommandFormat):
        return kind, row.quantity, row.unit, str(form.command(row))
    return name, row.line, row.label, row.quantity


def _predicted(asked: Asked) -> Predicted | Refused:
    kind, name, row, known = asked
    try:
        said = formats.named(kind).predicted(row) if known is None else known
        return Predicted(kind, name, row, said.value, said.low, said.high, said.doubts, said.fits, said.launches)
    except TriosimError as error:
        refusal = error
    except Exception as error:  # a mistake of ours in one row ends no table
        refusal = TriosimError(f"{type(error).__name__}: {error}")
    return Refused(name, refusal).of_row(name, row)


def main(given: Sequence[str] | None = None) -> int:
    options = _options(given)
    try:
        if options.plot:
            check_plot(options.plot)
            check_outputs(options.plot, reading=(options.table,))
        refused: list[Refused] = []
        tables = _tables(options, refused)
        if options.commands:
            return _print_commands(tables)
        known = printed.read(options.reuse)
        found = list(_shown(predicted(tables, jobs=options.jobs, known=known), refused, options.format))
        if options.format == "text":
            print_summaries(summaries(found), refused)
            print_groups(groups(found, refused))
        elif options.format == "json":
            print(json.dumps(plain(found, refused), indent=2))
        if options.plot and found:
            picture.scatter(found, options.plot)
    except TriosimError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0 if found else 2


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python validation/end_to_end.py", description=__doc__)
    parser.add_argument("--table", metavar="FILE", help="a csv or csv.gz file whose header says its format")
    parser.add_argument(
        "--only",
        metavar="NAME,...",
        action="append",
        default=[],
        help="these formats alone: " + ", ".join(f.name for f in formats.formats()),
    )
    parser.add_argument(
        "--reuse",
        metavar="FILE",
        action="append",
        default=[],
        help="a csv that this printed: what is in it is not run again",
    )
    parser.add_argument("--sample", type=int, metavar="N", help="so many rows of each table, evenly spaced")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="what is printed (text)")
    parser.add_argument("--commands", action="store_true", help="print the rows' command lines, and predict nothing")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of measured and predicted figures")
    options = parser.parse_args(given)
    for name in ("sample", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: give 1 or more")
    options.only = [name for said in options.only for name in said.split(",")]
    known = [one.name for one in formats.formats()]
    if unknown := [name for name in options.only if name not in known]:
        parser.error(f"--only {unknown[0]}: known are {', '.join(known)}")
    return options


def _tables(options: argparse.Namespace, refused: list[Refused]) -> list[Table]:
    """Return the tables that are asked for; broken rows of a file are said, and go to ``refused``."""
    if options.table is not None:
        table = Path(options.table).name.partition(".")[0]
        kind, found = formats.read(options.table, lambda *broken: _say_refused(Refused(table, *broken), refused))
        if options.only and kind.name not in options.only:
            raise OptionError(f"the format is {kind.name}", where=options.table, fix="leave out --only")
        tables = [(kind, table, found)]
    else:
        tables = list(formats.shared(*options.only, refuse=lambda *row: _say_refused(Refused(*row), refused)))
        if not tables:
            raise TriosimError(
                "no tables are there", where="TRIOSIM_DATA", fix="set it to their folder, or give --table"
            )
    return [(kind, name, spaced(found, options.sample)) for kind, name, found in tables]


def _print_commands(tables: Sequence[Table]) -> int:
    for kind, name, found in tables:
        for row in found:
            command = kind.command(row)
            said = f"# {name}:{row.line}: {row.label}"
            print(f"{said} takes more than one command" if command is None else f"{command}  {said}")
    return 0


def _say_refused(one: Refused, refused: list[Refused]) -> None:
    print(one.error, file=sys.stderr, flush=True)
    refused.append(one)


def _shown(found: Iterator[Predicted | Refused], refused: list[Refused], form: str) -> Iterator[Predicted]:
    """Print each row as it comes; what is refused goes to ``refused``."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if form == "csv":
        writer.writerow(printed.COLUMNS)
    for one in found:
        if isinstance(one, Refused):
            _say_refused(one, refused)
            continue
        if form == "csv":
            writer.writerow(printed.line(one))
            sys.stdout.flush()
        elif form == "text":
            print(_said(one), flush=True)
        yield one


def _said(one: Predicted) -> str:
    row = one.row
    figures = f"measured {row.measured:.5g} {row.unit}, predicted {one.value:.5g} {row.unit}"
    return f"{one.table} {row.label}: {row.quantity} {figures}, {100 * one.error:+.1f}%"


def print_summaries(found: Sequence[Summary], refused: Sequence[Refused]) -> None:
    for table in dict.fromkeys(one.table for one in refused):
        print(f"{table}: {sum(one.table == table for one in refused)} refused")
    for one in found:
        print(
            f"{one.table}, {one.quantity}: {one.rows} rows, MAPE {100 * one.mean:.2f}%, median {100 * one.median:.2f}%, "
            f"worst {100 * one.worst:+.1f}%, bias {100 * one.bias:+.2f}%"
            + ("" if one.covered is None else f", {100 * one.covered:.0f}% in their interval")
            + (f"; asked {100 * one.asked:g}%" if one.asked < float("inf") else "")
            + (f"; published: {one.published}" if one.published else "")
        )


def print_groups(found: Sequence[GroupSummary]) -> None:
    """Print the errors by table, GPU and framework, where they say more than the tables' do."""
    for one in found:
        held = "" if one.covered is None else f", {100 * one.covered:.0f}% in their interval"
        lost = f", {one.refused} refused" if one.refused else ""
        print(
            f"  {one.group}, {one.quantity}: {one.rows} rows{lost}, {100 * one.mean:.2f}%, bias {100 * one.bias:+.2f}%{held}"
        )


def plain(found: Sequence[Predicted], refused: Sequence[Refused]) -> dict[str, object]:
    return {
        "rows": [
            {
                **{
                    "table": one.table,
                    "source": one.source,
                    "row": one.row.label,
                    "model": one.row.model,
                    "quantity": one.row.quantity,
                },
                **{"unit": one.row.unit, "measured": one.row.measured, "predicted": one.value, "error": one.error},
                **{"line": one.row.line, "group": one.group, "low": one.low, "high": one.high, "fits": one.fits},
                "doubts": dict(one.doubts),
                "launches": one.launches,
                "command": _command(one),
            }
            for one in found
        ],
        "refused": [one.plain() for one in refused],
        "summaries": [one.plain() for one in summaries(found)],
        "groups": [asdict(one) for one in groups(found, refused)],
    }


def _command(one: Predicted) -> str | None:
    found = formats.named(one.kind).command(one.row)
    return None if found is None else str(found)


if __name__ == "__main__":
    sys.exit(main())
