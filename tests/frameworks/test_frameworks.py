"""Frameworks from PyPI, unmodified, run live to their end, and their own logs show our figures within 1%.

Each runs in an environment of its own, which is made where ``TRIOSIM_FRAMEWORKS`` has none (``environments.py``).
"""

from __future__ import annotations

import ast
import json
import os
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.frameworks.environments import PACKAGES, python_of
from validation.live_torchtitan import write_assets

pytestmark = pytest.mark.frameworks
SCRIPTS = Path(__file__).resolve().parent / "scripts"
TRAINER = ("--output_dir", "out", "--max_steps", "6", "--per_device_train_batch_size", "8", "--report_to", "none")
TRAINER += ("--gradient_accumulation_steps", "4", "--eval_strategy", "steps", "--eval_steps", "3", "--save_steps", "3")


class Run(NamedTuple):
    """What a run printed, and its result."""

    printed: str
    result: dict[str, Any]

    def steps(self) -> list[float]:
        """What the script says that its steps took, in seconds."""
        return [float(found) for found in re.findall(r"^step: ([\d.]+)$", self.printed, re.MULTILINE)]


def run(name: str, folder: Path, *command: str) -> Run:
    """Run a command of ``triosim run`` in the environment of a framework."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    system = ["-m", "triosim", "run", "--gpu", "H100", "-o", "result.json"]
    done = subprocess.run(
        [str(python_of(name)), *system, *command], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return Run(done.stdout, json.loads((folder / "result.json").read_text(encoding="utf-8")))


def agrees(found: Run, samples: int) -> None:
    """The median step that the script printed is the result's, and the global batch is as many samples."""
    assert statistics.median_low(found.steps()[1:]) == pytest.approx(found.result["step_time_s"], rel=0.01)
    assert found.result["global_batch_size"] == samples


@pytest.mark.parametrize("how", [(), ("--fsdp", "full_shard")], ids=["ddp", "fsdp"])
def test_the_trainer_of_transformers(tmp_path: Path, how: tuple[str, ...]) -> None:
    script = str(SCRIPTS / "trainer.py")
    found = run("transformers", tmp_path, "--", "torchrun", "--nproc-per-node", "8", script, *TRAINER, *how)
    said = [ast.literal_eval(one) for one in re.findall(r"\{'train_runtime.*\}", found.printed)][-1]
    steps = found.result["steps"]
    ended = steps[-1]["began_s"] + steps[-1]["seconds"]
    assert found.result["global_batch_size"] == 8 * 8 * 4
    assert float(said["train_runtime"]) == pytest.approx(ended, rel=0.06)  # with the last evaluation and checkpoint
    assert {one["tokens"] for one in steps} == {8 * 8 * 4 * 128}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_lightning(tmp_path: Path, strategy: str) -> None:
    found = run("lightning", tmp_path, "--world", "8", str(SCRIPTS / "lightning_train.py"), strategy, "8")
    steps = found.steps()
    for own, ours in zip(steps[1:4], found.result["steps"][1:4], strict=True):
        assert own == pytest.approx(ours["seconds"], rel=0.5)  # the two begin at different lines of a step
    assert sum(steps) == pytest.approx(sum(one["seconds"] for one in found.result["steps"]), rel=0.01)
    assert found.result["global_batch_size"] == 64


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_of_deepspeed(tmp_path: Path, stage: int) -> None:
    script = str(SCRIPTS / "deepspeed_train.py")
    found = run("deepspeed", tmp_path, "--", "deepspeed", "--num_gpus", "8", script, "--stage", str(stage))
    agrees(found, 8 * 4 * 2)


def test_megatron_core(tmp_path: Path) -> None:
    found = run("megatron", tmp_path, "--", "torchrun", "--nproc-per-node", "8", str(SCRIPTS / "megatron_train.py"))
    agrees(found, 2 * 2 * 4)


def test_megatron_core_with_a_stand_in_of_transformer_engine(tmp_path: Path) -> None:
    """Its layers gather and scatter sequences, and their fused norms launch less than Megatron-Core's own layers."""
    launcher = ("--", "torchrun", "--nproc-per-node", "8", str(SCRIPTS / "megatron_train.py"))
    found = run("megatron", tmp_path, "--stand-in", "transformer_engine", *launcher, "--te")
    agrees(found, 2 * 2 * 4)
    sent = {one["kind"] for one in found.result["collectives"] if one["axis"].startswith("TENSOR")}
    assert {"all_gather", "reduce_scatter"} <= sent


def test_timm(tmp_path: Path) -> None:
    found = run("timm", tmp_path, "--", "torchrun", "--nproc-per-node", "8", str(SCRIPTS / "timm_train.py"))
    agrees(found, 8 * 16)


@pytest.mark.parametrize(
    ("how", "ranks"),
    [
        (("--checkpoint.enable", "--checkpoint.interval", "3"), 1),
        (("--parallelism.tensor_parallel_degree", "2"), 2),
        (("--parallelism.tensor_parallel_degree", "2", "--parallelism.pipeline_parallel_degree", "2"), 4),
    ],
    ids=["fsdp", "tp", "pp-tp"],
)
def test_torchtitan(tmp_path: Path, how: tuple[str, ...], ranks: int) -> None:
    """``ranks`` share a sample. The log says the tokens a second of a GPU."""
    write_assets(tmp_path)
    sizes = ("--training.local_batch_size", "8", "--training.seq_len", "2048", "--training.steps", "5")
    which = ("--model.name", "llama3", "--model.flavor", "debugmodel", "--training.dataset", "c4_test")
    command = ("torchrun", "--nproc-per-node", "4", "-m", "torchtitan.train", *which, *sizes, "--metrics.log_freq", "1")
    found = run("torchtitan", tmp_path, "--", *command, *how)
    own = [int(one.replace(",", "")) for one in re.findall(r"tps: ([\d,]+)", found.printed)]
    assert own[-1] == pytest.approx(8 * 2048 / ranks / found.result["step_time_s"], rel=0.01)
    assert found.result["global_batch_size"] == 8 * 4 / ranks


@pytest.mark.parametrize("degrees", [{"expert": 4}, {"expert": 4, "tensor": 2}])
def test_torchtitan_sends_the_tokens_that_are_drawn(tmp_path: Path, degrees: dict[str, int]) -> None:
    """Its own all-to-alls, of DeepSeek-V3 with eight experts on four ranks: ranks wait for the busiest, or for none."""
    write_assets(tmp_path)
    which = ("--model.name", "deepseek_v3", "--model.flavor", "debugmodel", "--training.dataset", "c4_test")
    sizes = ("--training.local_batch_size", "4", "--training.seq_len", "2048", "--training.steps", "3")
    how = [one for name, size in degrees.items() for one in (f"--parallelism.{name}_parallel_degree", str(size))]
    command = ("--", "torchrun", "--nproc-per-node", "4", "-m", "torchtitan.train", *which, *sizes, *how)
    waited = {}
    for routing in ("balanced", "zipf=1.2,seed=3"):
        result = run("torchtitan", tmp_path, "--routing", routing, *command).result
        assert any(one["kind"] == "all_to_all" for one in result["collectives"])
        waited[routing] = sum(one["waiting_s"] for one in result["ranks"])
    assert waited["balanced"] < 1e-5 < waited["zipf=1.2,seed=3"]


@pytest.mark.parametrize("routing", ["balanced", "zipf=1.2,seed=3"])
@pytest.mark.parametrize("fused", [False, True])
def test_megatron_core_sends_the_tokens_that_are_drawn(tmp_path: Path, routing: str, fused: bool) -> None:
    """Also with TransformerEngine's layers, without which its router lacks a name."""
    command = ("--", "torchrun", "--nproc-per-node", "4", str(SCRIPTS / "megatron_experts.py"))
    ours = ("--stand-in", "transformer_engine") if fused else ()
    given = ("--te",) if fused else ()
    printed = run("megatron", tmp_path, *ours, "--routing", routing, "--ranks", "all", *command, *given).printed
    lines = re.findall(r"^rank (\d) sent (\[.+\]) got (\[.+\])$", printed, re.MULTILINE)
    by_rank = [
        [(ast.literal_eval(one[1]), ast.literal_eval(one[2])) for one in lines if one[0] == rank] for rank in "0123"
    ]
    assert {len(one) for one in by_rank} == {3 * 2 * 2}
    for ranks in zip(*by_rank, strict=True):
        sent, got = [one[0] for one in ranks], [one[1] for one in ranks]
        assert [sum(one) for one in sent] == [2 * 2 * 256] * 4
        assert [list(column) for column in zip(*sent, strict=True)] == got
        assert all(one == [256] * 4 for one in sent) is (routing == "balanced")


@pytest.mark.parametrize("routing", ["balanced", "zipf=1.2,seed=3"])
@pytest.mark.parametrize("choices", [1, 2, 4])
def test_deepspeed_sends_the_tokens_that_are_drawn(tmp_path: Path, choices: int, routing: str) -> None:
    """Without dropping tokens it pads each expert's rows to those of the busiest one on any rank."""
    script = (str(SCRIPTS / "deepspeed_experts.py"), "--choices", str(choices), "--keep")
    found = run(
        "deepspeed", tmp_path, "--routing", routing, "--ranks", "all", "--", "deepspeed", "--num_gpus", "4", *script
    )
    agrees(found, 4 * 4)
    lines = re.findall(r"^rank (\d) layer (\d) counts (\[.+\]) of (\d+)$", found.printed, re.MULTILINE)
    assert len(lines) == 4 * 4 * 2  # ranks, steps, layers
    tokens, experts, width, bf16 = 4 * 128, 8, 256, 2
    sent = set()
    for layer in "01":
        by_rank = [[one for one in lines if one[:2] == (rank, layer)] for rank in "0123"]
        for ranks in zip(*by_rank, strict=True):
            counts = [ast.literal_eval(one[2]) for one in ranks]
            assert all(sum(one) == tokens * choices for one in counts)
            assert {int(one[3]) for one in ranks} == {max(map(max, counts))}
            assert (len({count for one in counts for count in one}) == 1) is (routing == "balanced")
            sent.add(experts * int(ranks[0][3]) * width * bf16)
    assert {one["bytes"] for one in found.result["collectives"] if one["kind"] == "all_to_all"} <= sent


def test_each_environment_names_the_version_that_it_was_tested_with() -> None:
    assert all("==" in package for packages in PACKAGES.values() for package in packages)
