"""Child processes: they get their arguments, notice that we are gone, and end when we say so."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

import pytest

from triosim.capture.child_processes import ChildProcess, end


def answer(connection: Connection, word: str) -> None:
    connection.send((word, os.getpid()))
    try:
        connection.recv()
    except EOFError:
        os._exit(7)


@pytest.mark.parametrize("method", ["fork", "spawn"] if sys.platform == "linux" else ["spawn"])
def test_each_has_its_own_connection(method: str) -> None:
    first = ChildProcess.start(method, answer, "first")
    second = ChildProcess.start(method, answer, "second", beside=[first])
    try:
        assert first.connection.recv() == ("first", first.process.pid)
        assert second.connection.recv() == ("second", second.process.pid)
        first.connection.close()  # of which the second has no copy
        first.process.join(10)
        assert first.process.exitcode == 7
        assert second.process.is_alive()
    finally:
        end([first, second])
    assert not second.process.is_alive()
