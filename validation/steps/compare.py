"""Errors of a sample of every table before and after a change.

    python validation/end_to_end.py --sample 8 --format csv > before.csv    # and again, after the change, > now.csv
    python -m validation.steps.compare before.csv now.csv

prints the mean error of each table's rows that are in both files, and the rows that are further off than before by more than
two percent.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from statistics import fmean

from validation.steps import printed
from validation.steps.printed import RowKey

_WORSE = 0.02


def by_table(before: Mapping[RowKey, float], now: Mapping[RowKey, float]) -> dict[str, tuple[int, float, float]]:
    """Return the number of rows that both have, and their mean errors before and now, by table."""
    tables: dict[str, list[RowKey]] = {}
    for key in before:
        if key in now:
            tables.setdefault(key[0], []).append(key)
    return {
        table: (len(keys), fmean(abs(before[key]) for key in keys), fmean(abs(now[key]) for key in keys))
        for table, keys in tables.items()
    }


def main(before: str, now: str) -> None:
    old, new = printed.errors(before), printed.errors(now)
    for table, (count, was, is_now) in by_table(old, new).items():
        print(f"{table}: {count} rows, {was:.1%} before, {is_now:.1%} now")
    for key, error in new.items():
        if key in old and abs(error) > abs(old[key]) + _WORSE:
            print(f"  worse: {', '.join(key)}: {old[key]:+.1%} before, {error:+.1%} now")


if __name__ == "__main__":
    main(*sys.argv[1:3])
