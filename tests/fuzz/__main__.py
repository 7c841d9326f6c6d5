"""Runs the fuzzer from the command line: ``python -m tests.fuzz --count 1000`` tries so many changed inputs of each kind."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.kinds import KINDS


def main() -> int:
    """Fuzz, and print a table of the kinds: how many were tried, refused and failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="changed inputs of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the random changes")
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS], help="one kind; repeatable")
    parser.add_argument("--keep", type=Path, help="a folder in which the inputs that failed are kept")
    given = parser.parse_args()
    failed = 0
    print(f"{'kind':14} tried refused failed  processor s")
    for kind in KINDS:
        if given.kind and kind.name not in given.kind:
            continue
        found = fuzz(kind, range(given.count), given.seed, given.keep)
        print(
            f"{kind.name:14} {given.count:5} {found.refused:7} {len(found.failures):6} {found.seconds:12.0f}",
            flush=True,
        )
        for failure in found.failures:
            print(f"  {failure}", flush=True)
        failed += len(found.failures)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
