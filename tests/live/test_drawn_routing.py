"""``--routing``: a script's own token counts, all-to-alls and waits follow from the experts that are drawn."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from triosim.cli import run

torch = pytest.importorskip("torch")

#: Two ranks with four experts each. It says what it counts and what it sends.
EXPERTS = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd as exchange

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()

class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(512, 8)

    def forward(self, tokens):
        return self.score(tokens).softmax(-1).topk(2, -1)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList([nn.Linear(512, 512) for _ in range(8 // world)])

    def forward(self, tokens):
        weights, chosen = self.router(tokens)
        order = chosen.view(-1).argsort(stable=True)
        counts = torch.histc(chosen.view(-1), bins=8, min=0, max=8)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        sent, got = counts.view(world, -1).sum(1).tolist(), arriving.view(world, -1).sum(1).tolist()
        rows = exchange(tokens[order // 2], got, sent, dist.group.WORLD)
        rows = torch.cat([one(part) for one, part in zip(self.experts, rows.split(arriving.view(world, -1).sum(0).tolist()))])
        print("rank", rank, "sent", sent, "got", got, flush=True)
        back = exchange(rows, sent, got, dist.group.WORLD)
        return tokens.index_add(0, order // 2, back * weights.view(-1)[order][:, None])

model = Layer().cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    model(torch.randn(4096, 512, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def routed(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, *options: str) -> tuple[str, dict[str, Any]]:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(EXPERTS, encoding="utf-8")
    assert run(["run", "--gpu", "H100", "--world", "2", "-o", "result.json", *options, "train.py"]) == 0
    return capsys.readouterr().out, json.loads((folder / "result.json").read_text(encoding="utf-8"))


def test_what_is_sent_arrives_and_ranks_wait_for_the_busiest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    log, result = routed(tmp_path, monkeypatch, capsys, "--routing", "zipf=1.2,seed=3")
    lines = re.findall(r"^rank (\d) sent \[(\d+), (\d+)\] got \[(\d+), (\d+)\]$", log, re.MULTILINE)
    calls = [[tuple(map(int, one[1:])) for one in lines if one[0] == rank] for rank in "01"]
    assert len(calls[0]) == len(calls[1]) == 3
    for first, second in zip(*calls, strict=True):
        assert first[0] + first[1] == second[0] + second[1] == 2 * 4096
        assert first[2:] == (first[0], second[0])
        assert second[2:] == (first[1], second[1])
        assert max(first[2] + first[3], second[2] + second[3]) > 1.1 * 2 * 4096
    again, same = routed(tmp_path, monkeypatch, capsys, "--routing", "zipf=1.2,seed=3")
    assert sorted(again.splitlines()) == sorted(log.splitlines())
    assert same["step_time_s"] == result["step_time_s"]
    balanced, even = routed(tmp_path, monkeypatch, capsys, "--routing", "balanced")
    assert set(re.findall(r"sent (.+)$", balanced, re.MULTILINE)) == {"[4096, 4096] got [4096, 4096]"}
    assert result["step_time_s"] > even["step_time_s"]
    assert sum(one["waiting_s"] for one in result["ranks"]) > sum(one["waiting_s"] for one in even["ranks"])


def test_a_capture_draws_too_where_ranks_need_not_know_of_each_other(tmp_path: Path) -> None:
    def capture(routing: str) -> subprocess.CompletedProcess[str]:
        options = ["--fake", "--world", "2", "-o", "streams.json", "--routing", routing]
        command = [sys.executable, "-m", "triosim", "capture", *options, "train.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    (tmp_path / "train.py").write_text(EXPERTS, encoding="utf-8")
    done = capture("balanced")
    assert done.returncode == 0
    assert set(re.findall(r"sent \[(\d+), (\d+)\]", done.stdout)) == {("4096", "4096")}
    refused = capture("zipf=1.2")
    assert refused.returncode == 2
    assert "triosim run" in refused.stderr


@pytest.mark.parametrize("command", [["run"], ["capture", "--fake"]])
def test_what_is_no_load_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    assert run([*command, "--routing", "zipf=steep", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "--routing" in said
    assert "Traceback" not in said


def test_a_capture_on_a_gpu_does_not_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    assert run(["capture", "--routing", "balanced", "train.py"]) == 2
    assert "--fake" in capsys.readouterr().err
