"""Kills commands from the command line: ``python -m tests.faults --count 100`` kills each so many times."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.faults.kills import COMMANDS, faults_of_a_kill, prepare, seconds_of


def main() -> int:
    """Kill, and print a table of the commands: how many kills, and how many left something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--count", type=int, default=10, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="one command; repeatable")
    given = parser.parse_args()
    failed = 0
    print("command   kills failed  seconds of a run")
    for name in given.command or COMMANDS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            prepare(folder)
            seconds = seconds_of(COMMANDS[name], folder)
            wrong = []
            for number in range(given.count):
                draw = random.Random(f"{given.seed} {name} {number}")
                wrong += [f"  {number}: {one}" for one in faults_of_a_kill(COMMANDS[name], folder, seconds, draw)]
        print(f"{name:10} {given.count:4} {len(wrong):6} {seconds:8.1f}", *wrong, sep="\n", flush=True)
        failed += len(wrong)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
