"""Tries changed inputs of one kind and collects those that ended wrongly."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.kind import Kind
from tests.fuzz.kinds import command_of
from tests.fuzz.running import Ended, faults, run


@dataclass(frozen=True, slots=True)
class Failure:
    """A changed input that ended wrongly: which one of a kind, the command, what is wrong, and the last line of error."""

    kind: str
    number: int
    command: str
    faults: tuple[str, ...]
    last: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: triosim {self.command:.200}: {'; '.join(self.faults)}: {self.last:.200}"


@dataclass(slots=True)
class Fuzzed:
    """What came of a kind: how many inputs were refused, the failures, and the processor seconds of all."""

    refused: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0


def fuzz(kind: Kind, numbers: Iterable[int], seed: int = 0, keep: Path | None = None) -> Fuzzed:
    """Try the changed inputs of a kind that have these numbers."""
    found = Fuzzed()
    os.environ.setdefault("COLUMNS", "100")
    with tempfile.TemporaryDirectory() as place:
        sound = Path(place, "sound")
        sound.mkdir()
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            kind.make(sound)
        for number in numbers:
            folder = Path(place, str(number))
            shutil.copytree(sound, folder)
            draw = random.Random(f"{seed} {kind.name} {number}")
            _change(kind, folder, draw)
            words = command_of(kind, draw)
            before = {path.name for path in folder.iterdir()}
            ended = run(words, folder)
            found.seconds += ended.seconds
            found.refused += ended.status == 2
            wrong = tuple(faults(ended, folder, before))
            if wrong:
                found.failures.append(Failure(kind.name, number, shlex.join(words), wrong, _last(ended)))
                if keep is not None:
                    shutil.copytree(folder, keep / f"{kind.name}-{number}".replace(" ", "-"), dirs_exist_ok=True)
            shutil.rmtree(folder)
    return found


def _change(kind: Kind, folder: Path, draw: random.Random) -> None:
    if kind.files:
        name = draw.choice(sorted(kind.files))
        path = folder / name
        path.write_bytes(kind.files[name](path.read_bytes(), draw))


def _last(ended: Ended) -> str:
    return (ended.errors.strip().splitlines() or [""])[-1]
