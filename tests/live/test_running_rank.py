"""The simulation's end of the connection to a running rank, whose other end may not answer."""

from __future__ import annotations

from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from triosim.live import running_rank
from triosim.live.running_rank import RunningRank


def test_an_interrupted_script_that_does_not_answer_has_no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a call that does not return; nobody waits for it."""
    monkeypatch.setattr(running_rank, "_ANSWER_SECONDS", 0.01)
    ours, _theirs = Pipe()
    process: Any = SimpleNamespace(pid=None)
    rank = RunningRank(0, process, ours, lambda new, old: list(new), lambda groups: None, 600.0)
    rank.interrupt()
    assert rank.trace(0)[0] is None
