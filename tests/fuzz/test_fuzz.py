"""Twenty changed inputs of each kind; ``python -m tests.fuzz --count 1000`` tries more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.fuzzing import fuzz
from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.running import run

pytestmark = pytest.mark.slow
COUNT = 20


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_sound_input_is_read(kind: Kind, tmp_path: Path) -> None:
    kind.make(tmp_path)
    for command in kind.commands:
        ended = run(command.split(), tmp_path)
        assert ended.status == 0, (command, ended.errors)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_changed_input_ends_in_a_line_or_a_sensible_result(kind: Kind) -> None:
    found = fuzz(kind, range(COUNT))
    assert not found.failures, "\n".join(map(str, found.failures))
