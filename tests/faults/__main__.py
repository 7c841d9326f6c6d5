"""Kills commands from the command line: ``python -m tests.faults --count 100`` kills each so many times."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.faults.kills import COMMANDS, WITH_WORKERS, faults_of_a_kill, faults_of_a_killed_worker, prepare, seconds_of


def main() -> int:
    """Kill, and print a table of the commands: how many kills, and how many left something wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--count", type=int, default=10, help="kills of each command")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--command", action="append", choices=COMMANDS, help="one command; repeatable")
    parser.add_argument("--workers", action="store_true", help="kill one of the processes that a command starts")
    given = parser.parse_args()
    commands, kill = (WITH_WORKERS, faults_of_a_killed_worker) if given.workers else (COMMANDS, faults_of_a_kill)
    failed = 0
    print("command   kills failed  seconds of a run")
    for name in given.command or commands:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            prepare(folder)
            seconds = seconds_of(commands[name], folder)
            wrong = []
            for number in range(given.count):
                draw = random.Random(f"{given.seed} {name} {number}")
                wrong += [f"  {number}: {one}" for one in kill(commands[name], folder, seconds, draw)]
        print(f"{name:10} {given.count:4} {len(wrong):6} {seconds:8.1f}", *wrong, sep="\n", flush=True)
        failed += len(wrong)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
