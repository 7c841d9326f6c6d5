"""Run every validation script and print one table: what was compared, with what, the error, and the claim."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time

from rich.console import Console
from rich.table import Table

import validation
from validation.report import DataAbsent, Row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m validation", description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts to run; all without any")
    parser.add_argument("--markdown", action="store_true", help="print the table as it stands in the docs")
    options = parser.parse_args()
    scripts = [
        module.name
        for module in pkgutil.iter_modules(validation.__path__)
        if not module.ispkg
        and module.name not in ("__main__", "report")
        and (not options.names or module.name in options.names)
    ]
    rows: list[tuple[str, Row]] = []
    for script in scripts:
        began = time.perf_counter()
        try:
            found = importlib.import_module(f"validation.{script}").rows()
        except DataAbsent as absent:
            print(f"{script}: skipped, {absent}", file=sys.stderr)
            continue
        rows += [(script, row) for row in found]
        print(f"{script}: {len(found)} rows in {time.perf_counter() - began:.1f} s", file=sys.stderr)
    if options.markdown:
        print_markdown(rows)
    else:
        print_table(rows)
    return 0 if rows and all(row.holds for _, row in rows) else 1


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
