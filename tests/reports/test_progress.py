"""Progress is for a person who waits."""

from __future__ import annotations

import io
import sys
import time

import pytest

from triosim.reports.terminal import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    return Terminal()


def test_a_run_that_takes_long_says_how_far_it_is(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)  # here, because pytest sets its own between a fixture and its test
    with progress.Progress() as line:
        line.label = "ddp: "
        line(0.5, 4096)
        deadline = time.monotonic() + 10
        while not terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "ddp: 500 ms simulated, 4,096 tasks" in terminal.getvalue()


def test_a_quick_run_says_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.Progress() as line:
        line(0.5, 4096)
    time.sleep(0.1)
    assert terminal.getvalue() == ""


def test_where_nobody_looks_nothing_is_said(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.Progress(shown=False):
        time.sleep(0.1)
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    with progress.Progress():
        time.sleep(0.1)
    assert terminal.getvalue() == ""
