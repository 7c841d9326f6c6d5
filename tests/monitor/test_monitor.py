"""The monitor's page shows what a run does, pauses and stops it, and answers nobody who does not know its token."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from traces import mlp, transformer

import triosim
from triosim import cli, save_trace
from triosim.engine import Engine
from triosim.engine.doing import Doing
from triosim.errors import OptionError
from triosim.monitor.server import ADDRESS, served
from triosim.monitor.watched_run import WatchedRun, cycle_of, rows_of
from triosim.monitor.watched_search import WatchedSearch
from triosim.units import parse_ranks

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def url(done: list[str]) -> Iterator[str]:
    with served(lambda: {"phase": "simulating"}, {"stop": lambda: done.append("stop")}) as found:
        yield found


def asked(url: str, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str]:
    """Return the status and the text of an answer; ``headers`` have underscores for hyphens."""
    before, _, _ = url.partition("#")
    request = urllib.request.Request(before.rstrip("/") + path, method=method)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_state_and_the_actions_are_for_who_knows_the_token(url: str, done: list[str]) -> None:
    token = url.partition("#")[2]
    status, text = asked(url, "/state", x_token=token)
    assert status == 200
    assert json.loads(text)["phase"] == "simulating"
    assert json.loads(text)["memory_bytes"] > 1_000_000
    assert asked(url, "/state")[0] == 403
    assert asked(url, "/state", x_token="wrong")[0] == 403
    assert asked(url, "/do/stop", method="POST")[0] == 403
    assert done == []
    assert asked(url, "/do/stop", method="POST", x_token=token)[0] == 200
    assert asked(url, "/do/start", method="POST", x_token=token)[0] == 404
    assert done == ["stop"]


def test_pages_of_other_origins_and_other_hosts_learn_nothing(url: str) -> None:
    token = url.partition("#")[2]
    assert asked(url, "/state", x_token=token, host="evil.example")[0] == 400
    before = url.partition("#")[0]
    request = urllib.request.Request(before + "state", headers={"x-token": token, "origin": "https://evil.example"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_nothing_listens_after_the_run_nor_beyond_the_loopback_address() -> None:
    with served(lambda: {}, {}) as url:
        port = int(url.split(":")[2].split("/")[0])
        assert url.startswith(f"http://{ADDRESS}:")
        socket.create_connection((ADDRESS, port), timeout=5).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((ADDRESS, port), timeout=5)


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as other:
        other.bind((ADDRESS, 0))
        other.listen()
        with (
            pytest.raises(OptionError, match=r"--monitor-port: port \d+ cannot be taken"),
            served(lambda: {}, {}, other.getsockname()[1]),
        ):
            pass


def long_run(watched: WatchedRun) -> Any:
    return triosim.simulate(
        mlp(), "dp=4", gpus=4, topology="ring(4, bandwidth=1 MB/s)", iterations=3000, progress=watched
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_is_paused_goes_on_and_stops_with_what_has_run() -> None:
    watched = WatchedRun(lambda seconds, tasks: None)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(long_run(watched)))
    thread.start()
    wait_for(lambda: watched.state().get("tasks", 0) > 0)
    watched.pause()
    wait_for(lambda: watched.state()["tasks"] == (time.sleep(0.05), watched.state()["tasks"])[1])
    state = watched.state()
    assert state["paused"]
    assert state["tasks_left"] > 0
    assert 0 <= state["flows"] <= 4 * 3
    assert sum(len(parse_ranks(row["ranks"])) for row in state["ranks"]) == 4
    assert {row["state"] for row in state["ranks"]} <= {"computing", "transferring", "waiting", "host"}
    watched.stop()
    thread.join(20)
    (result,) = results
    assert 0 < len(result.data.iterations) < 3000
    assert [note for note in result.notes if note.startswith("stopped after")]
    whole = triosim.simulate(mlp(), "dp=4", gpus=4, topology="ring(4, bandwidth=1 MB/s)")
    assert result.step_time_s == pytest.approx(whole.step_time_s, rel=0.05)


def test_a_search_shows_its_best_points_pauses_and_goes_on() -> None:
    watched = WatchedSearch()
    columns = ("point", "step", "USD a step")
    watched.told("simulations", 1, 3, lambda: (columns, [["tp=1", "5.00 s", "5"]]))
    watched.told("simulations", 2, 3, lambda: (columns, [["tp=2", "3.00 s", "6"], ["tp=1", "5.00 s", "5"]]))
    assert watched.state()["best"] == [{"label": "tp=2", "step": "3.00 s"}, {"label": "tp=1", "step": "5.00 s"}]
    assert watched.state()["front"] == {"columns": columns, "rows": [["tp=2", "3.00 s", "6"], ["tp=1", "5.00 s", "5"]]}
    watched.actions["pause"]()
    search = threading.Thread(target=watched.told, args=("simulations", 3, 3, lambda: (columns, [])))
    search.start()
    search.join(0.1)
    assert search.is_alive()
    assert watched.state()["paused"]
    watched.actions["go-on"]()
    search.join(10)
    assert not search.is_alive()


def test_ranks_that_wait_for_each_other_are_named() -> None:
    def waiting(*partners: int) -> Doing:
        return Doing("waiting", "a receive", 0.0, partners)

    assert cycle_of({0: waiting(1), 1: waiting(2), 2: waiting(1)}) == [1, 2]
    assert cycle_of({0: waiting(1), 1: waiting(2), 2: waiting(1), 3: Doing("computing", "mm")}) == []
    assert cycle_of({0: waiting(1), 1: Doing("computing", "mm")}) == []


def test_the_command_prints_the_url_and_refuses_a_port_without_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "mlp.json"
    save_trace(mlp(), trace)
    assert cli.run(["simulate", str(trace), "--monitor", "-q"]) == 0
    assert f"triosim: monitor at http://{ADDRESS}:" in capsys.readouterr().err
    assert cli.run(["simulate", str(trace), "--monitor", "--monitor-port", "99999"]) == 2
    assert "--monitor-port: port 99999 cannot be taken: ports are below 65536" in capsys.readouterr().err
    assert cli.run(["simulate", str(trace), "--monitor-port", "8000"]) == 2
    assert "--monitor-port: has no effect without --monitor; add --monitor" in capsys.readouterr().err


def test_ranks_that_wait_alike_for_others_are_one_row() -> None:
    """Each of 128 ranks of a ring waits for the one before it; one computes."""
    ranks = {
        rank: Doing("waiting", f"a receive which waits for a send on rank {rank - 1}", 2.0) for rank in range(1, 128)
    }
    ranks[0] = Doing("computing", "add", 4.0)
    waiting, computing = rows_of(ranks, 5.0)
    assert (waiting["ranks"], waiting["since_s"]) == ("1-127", 3.0)
    assert waiting["text"] == "a receive which waits for a send on rank 0 (rank 1; others alike)"
    assert (computing["ranks"], computing["text"]) == ("0", "add")


def test_ranks_that_are_not_simulated_are_shown_with_the_one_that_stands_for_them() -> None:
    """Of 16 ranks of data parallelism one is simulated."""
    watched = WatchedRun(lambda seconds, tasks: None)
    triosim.simulate("gpt2", "ddp=16", gpu="H100", layers=2, topology="dgx-h100(gpus=16)", progress=watched)
    said = watched.state()["represented"]
    assert said == "1 of 16 ranks is simulated, each for those that do the same: rank 0 stands for ranks 0-15."
    (row,) = rows_of({0: Doing("computing", "add", 4.0)}, 5.0, {0: range(16)})
    assert row["ranks"] == "0-15"


@pytest.mark.parametrize(
    "options", [{"parallel": "dp=4"}, {"parallel": "pp=4", "micro_batches": 2}, {"parallel": "fsdp=4"}]
)
@pytest.mark.parametrize("fold", [True, False])
def test_the_tasks_that_are_left_are_known_about(options: dict[str, Any], fold: bool) -> None:
    """Counted from the first iteration of three ranks: none are left at the end of the run."""

    class Told(WatchedRun):
        engines: ClassVar[list[Engine]] = []

        def began(self, engine: Engine) -> None:
            super().began(engine)
            self.engines.append(engine)

    watched = Told(lambda seconds, tasks: None)
    triosim.simulate(
        transformer(), topology="ring(4, bandwidth=1 GB/s)", iterations=3, fold=fold, progress=watched, **options
    )
    done, left = watched.engines[-1].finished_tasks, watched.state()["tasks_left"]
    expected = watched._expected * len(watched.engines[-1].ranks)
    assert expected == pytest.approx(done, rel=0.2)
    assert left == max(0, expected - done)
