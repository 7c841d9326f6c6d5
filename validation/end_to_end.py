"""Measured training steps against what triosim predicts from the sizes alone: step times, throughput, memory.

``python validation/end_to_end.py --table FILE`` reads a table in a known format, prints every row with what is predicted of
each of its quantities and the error, and at the end the mean absolute error of each. Without a table, all that are there. The
fitted constants are those of ``validation/steps/constants.json``; ``--fit`` fits them again, and prints errors of model sizes
that were left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from triosim.errors import OptionError, TriosimError
from triosim.output import check_outputs
from triosim.reports.plot import check_plot
from validation.report import DataAbsent
from validation.report import Row as Claim
from validation.steps import constants, fitting, formats, picture
from validation.steps.errors import Predicted, Summary, spaced, summaries
from validation.steps.rows import Format, Row

#: How many rows of a table ``python -m validation`` predicts; all take half an hour.
SAMPLE = 12

Table = tuple[Format, str, list[Row]]


def rows() -> list[Claim]:
    """The mean error of rows evenly spaced over each table, against what is asked for."""
    tables = [(kind, name, spaced(found, SAMPLE)) for kind, name, found in formats.shared()]
    if not tables:
        raise DataAbsent("end_to_end is not there (set TRIOSIM_DATA)")
    found = summaries(list(predicted(tables)))
    return [
        Claim(f"{one.quantity}: {one.table}, mean error", one.published, one.rows, one.mean, one.asked) for one in found
    ]


def predicted(tables: Sequence[Table], values: Mapping[str, float] | None = None, jobs: int = 1) -> Iterator[Predicted]:
    """Predict every row, in order; in several processes if asked for."""
    values = constants.values() if values is None else values
    asked = [(kind.name, name, row, values) for kind, name, found in tables for row in found]
    if jobs == 1:
        yield from map(_predicted, asked)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_predicted, asked, chunksize=4)


def _predicted(asked: tuple[str, str, Row, Mapping[str, float]]) -> Predicted:
    kind, name, row, values = asked
    try:
        also = tuple(map(_predicted, ((kind, name, one, values) for one in row.also)))
        return Predicted(kind, name, row, formats.named(kind).predict(row, values), also)
    except TriosimError as error:
        raise type(error)(error.what, where=f"{name}, {row.label}", fix=error.fix) from None


def main(given: Sequence[str] | None = None) -> int:
    options = _options(given)
    try:
        if options.plot:
            check_plot(options.plot)
            check_outputs(options.plot, reading=(options.table,))
        tables = _tables(options)
        if options.fit:
            alone = [(kind, name, [replace(row, also=()) for row in rows]) for kind, name, rows in tables]
            fitting.fit(alone, options.jobs, predicted)
            return 0
        found = []
        for one in _shown(predicted(tables, jobs=options.jobs), options.format):
            found.append(one)
        if options.format == "text":
            print_summaries(summaries(found))
        elif options.format == "json":
            print(json.dumps(_plain(found), indent=2))
        if options.plot:
            picture.scatter(found, options.plot)
    except TriosimError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    return 0


def _options(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python validation/end_to_end.py", description=__doc__)
    parser.add_argument("--table", metavar="FILE", help="a csv or csv.gz file whose header says its format")
    parser.add_argument(
        "--only", metavar="NAME", help="one format alone: " + ", ".join(f.name for f in formats.formats())
    )
    parser.add_argument("--sample", type=int, metavar="N", help="so many rows of each table, evenly spaced")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--format", choices=("text", "json", "csv"), default="text", help="what is printed (text)")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of measured and predicted figures")
    parser.add_argument("--fit", action="store_true", help="fit the constants to the rows, and write them")
    options = parser.parse_args(given)
    for name in ("sample", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} {value}: give 1 or more")
    if options.only is not None and options.only not in [one.name for one in formats.formats()]:
        parser.error(f"--only {options.only}: known are {', '.join(one.name for one in formats.formats())}")
    return options


def _tables(options: argparse.Namespace) -> list[Table]:
    if options.table is not None:
        kind, found = formats.read(options.table)
        if options.only not in (None, kind.name):
            raise OptionError(f"the format is {kind.name}", where=options.table, fix=f"leave out --only {options.only}")
        tables = [(kind, Path(options.table).name.partition(".")[0], found)]
    else:
        tables = list(formats.shared(options.only))
        if not tables:
            raise TriosimError(
                "no tables are there", where="TRIOSIM_DATA", fix="set it to their folder, or give --table"
            )
    return [(kind, name, spaced(found, options.sample)) for kind, name, found in tables]


def _shown(found: Iterator[Predicted], form: str) -> Iterator[Predicted]:
    """Print each row as it comes."""
    if form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("table", "row", "quantity", "unit", "measured", "predicted", "error_percent"))
    for line in found:
        if form == "csv":
            for one in line.every:
                figures = f"{one.row.measured:.6g}", f"{one.value:.6g}", f"{100 * one.error:.2f}"
                writer.writerow((one.table, one.row.label, one.row.quantity, one.row.unit, *figures))
        elif form == "text":
            print(f"{line.table} {line.row.label}: {'; '.join(map(_said, line.every))}", flush=True)
        yield line


def _said(one: Predicted) -> str:
    row = one.row
    said = f"{row.quantity} measured {row.measured:.5g} {row.unit}, predicted {one.value:.5g} {row.unit}"
    return f"{said}, {100 * one.error:+.1f}%"


def print_summaries(found: Sequence[Summary]) -> None:
    for one in found:
        print(
            f"{one.table}, {one.quantity}: {one.rows} rows, MAPE {100 * one.mean:.2f}%, median {100 * one.median:.2f}%, "
            f"worst {100 * one.worst:+.1f}%, bias {100 * one.bias:+.2f}%"
            + (f"; asked {100 * one.asked:g}%" if one.asked < float("inf") else "")
            + (f"; published: {one.published}" if one.published else "")
        )


def _plain(found: Sequence[Predicted]) -> dict[str, object]:
    return {
        "constants": constants.values(),
        "rows": [
            {
                **{"table": one.table, "row": one.row.label, "model": one.row.model, "quantity": one.row.quantity},
                **{"unit": one.row.unit, "measured": one.row.measured, "predicted": one.value, "error": one.error},
            }
            for row in found
            for one in row.every
        ],
        "summaries": [one.plain() for one in summaries(found)],
    }


if __name__ == "__main__":
    sys.exit(main())
