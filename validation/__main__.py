"""Print how far the default command is off on published steps, by source, and then every other check of validation.

Steps are fixed samples of each table, and checks that take minutes are left out, so that this takes ten minutes on two cores.
With --full it is every row of every table and every check: some hours. The exit status is 0 if everything holds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

import validation
from validation import astra_sim, end_to_end, search_regret
from validation.report import DataAbsent, Row
from validation.steps.sources import print_sources, worst

#: The script of the steps, whose table comes first.
STEPS = "end_to_end"
_WORST = 15


def main() -> int:
    if sys.argv[1:2] == [search_regret.NAME] and len(sys.argv) > 2:  # of a table of its own
        return search_regret.main(sys.argv[2:])
    if sys.argv[1:2] == [astra_sim.NAME]:
        return astra_sim.main(sys.argv[2:])
    options = _options()
    scripts = [name for name in _scripts() if not options.names or name in options.names]
    fine = True
    if STEPS in scripts:
        fine = _steps(options)
    rows = list(_checks([name for name in scripts if name != STEPS], options))
    if rows:
        (print_markdown if options.markdown else print_table)(rows)
    return 0 if fine and all(row.holds for _, row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m validation", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"scripts to run, {STEPS} for the steps; all without any")
    parser.add_argument("--full", action="store_true", help="all rows of all tables, and checks that take long")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes that predict steps (2)")
    parser.add_argument("--rows", metavar="FILE", help="write the predicted steps, as end_to_end.py --format json does")
    parser.add_argument("--markdown", action="store_true", help="print the tables as they stand in the docs")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in _scripts()]:
        parser.error(f"there is no script {unknown[0]}: known are {', '.join(_scripts())}")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: give 1 or more")
    return options


def _scripts() -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(validation.__path__) if not module.ispkg)
    return [name for name in found if name not in ("__main__", "report")]


def _steps(options: argparse.Namespace) -> bool:
    """Print the table of sources; return whether all are as near as is asked."""
    began = time.perf_counter()
    try:
        found, rows, refused = end_to_end.judged(whole=options.full, jobs=options.jobs)
    except DataAbsent as absent:
        print(f"{STEPS}: skipped, {absent}", file=sys.stderr)
        return True
    if options.rows:
        with open(options.rows, "w", encoding="utf-8") as file:
            json.dump(end_to_end.plain(rows, refused), file, indent=2)
    print_sources(found, worst(rows, _WORST), markdown=options.markdown)
    print(f"{STEPS}: {len(rows)} rows in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return all(one.holds for one in found)


def _checks(scripts: list[str], options: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Yield the rows of the scripts whose data are there; of those that take long only what was asked for."""
    for script in scripts:
        module = importlib.import_module(f"validation.{script}")
        if getattr(module, "TAKES_LONG", False) and not (options.full or options.names):
            continue
        began = time.perf_counter()
        try:
            found = module.rows()
        except DataAbsent as absent:
            print(f"{script}: skipped, {absent}", file=sys.stderr)
            continue
        print(f"{script}: {len(found)} rows in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        yield from ((script, row) for row in found)


def print_table(rows: list[tuple[str, Row]]) -> None:
    table = Table(title="triosim against what is known")
    for heading in ("script", "what", "against", "cases", "largest error", "claimed", ""):
        table.add_column(heading, justify="right" if heading in ("cases", "largest error", "claimed") else "left")
    for script, row in rows:
        verdict = "[green]holds[/]" if row.holds else "[red]misses[/]"
        table.add_row(script, row.what, row.against, str(row.cases), f"{row.error:.1e}", f"{row.claim:.1e}", verdict)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def print_markdown(rows: list[tuple[str, Row]]) -> None:
    print("| what | against | cases | largest error | claimed | |\n|---|---|--:|--:|--:|---|")
    for _, row in rows:
        verdict = "holds" if row.holds else "**misses**"
        print(f"| {row.what} | {row.against} | {row.cases} | {row.error:.1e} | {row.claim:.1e} | {verdict} |")


if __name__ == "__main__":
    sys.exit(main())
