"""Packages of CUDA kernels that are not installed are stood in for where asked: what runs has their shapes and memory."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import importlib  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from triosim.cli import run  # noqa: E402
from triosim.errors import OptionError  # noqa: E402
from triosim.tracer.patches import Patches  # noqa: E402
from triosim.tracer.stand_ins import apex, finder, flash_attn  # noqa: E402

LAYERS = """
import importlib.metadata, time
import torch, amp_C, transformer_engine.pytorch as te
from apex.multi_tensor_apply import multi_tensor_applier
from apex.optimizers import FusedAdam
from flash_attn import flash_attn_func
from grouped_gemm import ops
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = te.LayerNormLinear(64, 192, params_dtype=torch.bfloat16)
        self.experts = nn.Parameter(torch.empty(4, 64, 64, dtype=torch.bfloat16, device="cuda"))
    def forward(self, x):
        with te.fp8_autocast(enabled=True):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 32)).unbind(2)
        x = flash_attn_func(q, k, v, causal=True).flatten(-2)
        return ops.gmm(x.flatten(0, 1), self.experts, torch.tensor([32] * 4)).view_as(x)

model = Model()
optimizer = FusedAdam(model.parameters())
for _ in range(2):
    model(torch.randn(4, 32, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
    multi_tensor_applier(amp_C.multi_tensor_l2norm, None, [[one.grad for one in model.parameters()]], False)
    optimizer.step()
    optimizer.zero_grad()
print(importlib.metadata.version("flash_attn"), flash_attn_func.__name__)
"""
PACKAGES = ("amp_C", "apex", "flash_attn", "grouped_gemm", "transformer_engine")
absent = pytest.mark.skipif(
    any(importlib.util.find_spec(name) for name in PACKAGES), reason="the packages themselves are installed"
)


@absent
def test_a_script_runs_with_the_kernels_operators_and_each_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(LAYERS, encoding="utf-8")
    names = "flash-attn,apex,transformer_engine,grouped_gemm"
    assert run(["run", "--gpu", "H100", "--stand-in", names, "-o", "result.json", "train.py"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "2.8.3 flash_attn_func"
    found = {one["name"].removeprefix("aten::") for one in json.loads(Path("result.json").read_text())["operators"]}
    assert {"_scaled_dot_product_flash_attention", "_scaled_mm", "_grouped_mm", "_fused_adamw_"} <= found
    for package in finder.NAMES:
        assert f"{package} is not installed: its stand-in runs" in shown.err
    assert not any(name in sys.modules for name in PACKAGES)


#: A product of which the input is kept as fp8, or as it was, which is one that something else keeps.
KEPT = """
import sys, torch
import transformer_engine.pytorch as te
layer = te.Linear(1024, 1024, params_dtype=torch.bfloat16, bias=False)
layer.save_original_input = sys.argv[1] == "original"
x = torch.randn(8192, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
before = torch.cuda.memory_allocated()
with te.fp8_autocast(enabled=True):
    out = layer(x)
print(torch.cuda.memory_allocated() - before - out.nbytes)
out.sum().backward()
"""


@absent
@pytest.mark.parametrize(("how", "rows"), [("narrow", 8192), ("original", 0)])
def test_a_layer_in_fp8_keeps_its_input_as_it_was_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str, rows: int
) -> None:
    """Of each the weight, 1,024 by 1,024 bytes, is kept as well; an x that is the script's takes no bytes more."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(KEPT, encoding="utf-8")
    assert run(["run", "--gpu", "H100", "--stand-in", "transformer_engine", "-q", "train.py", how]) == 0
    assert int(capsys.readouterr().out.splitlines()[0]) == (1024 + rows) * 1024


@absent
def test_without_the_option_the_error_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import amp_C\n", encoding="utf-8")
    assert run(["run", "--gpu", "H100", "train.py"]) == 1
    said = capsys.readouterr().err
    assert "ModuleNotFoundError: No module named 'amp_C'" in said
    assert "note: apex is not installed; --stand-in apex runs PyTorch's operators in its place" in said


def test_what_nothing_stands_in_for_is_refused() -> None:
    assert finder.checked("flash-attn,apex") == ("flash_attn", "apex")
    with pytest.raises(OptionError, match="there is no stand-in of 'xformers'"):
        finder.checked("apex,xformers")


@pytest.mark.parametrize(("heads", "causal"), [(4, True), (4, False), (2, True)])
def test_attention_is_that_of_its_definition(heads: int, causal: bool) -> None:
    q, k, v = (torch.randn(2, 6, number, 8) for number in (4, heads, heads))
    wide = [one.repeat_interleave(4 // heads, 2) for one in (k, v)]
    scores = torch.einsum("bihd,bjhd->bhij", q, wide[0]) / 8**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    expected = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), wide[1])
    torch.testing.assert_close(flash_attn.flash_attn_func(q, k, v, causal=causal), expected)
    ends = torch.tensor([0, 6, 12], dtype=torch.int32)
    flat = [one.flatten(0, 1) for one in (q, k, v)]
    behind = flash_attn.flash_attn_varlen_func(*flat, ends, ends, 6, 6, causal=causal)
    torch.testing.assert_close(behind, expected.flatten(0, 1))


def test_sequences_that_are_no_equal_parts_keep_their_number_of_tokens() -> None:
    rows = torch.randn(11, 2, 8)
    ends = torch.tensor([0, 3, 7, 11], dtype=torch.int32)
    assert flash_attn.flash_attn_varlen_func(rows, rows, rows, ends, ends, 4, 4).shape == rows.shape
    attention, logs, none = flash_attn.flash_attn_varlen_func(
        rows, rows, rows, ends, ends, 4, 4, return_attn_probs=True
    )
    assert (attention.shape, logs.shape, none) == (rows.shape, rows.shape[:-1], None)


def test_padding_is_put_back() -> None:
    hidden = torch.randn(2, 3, 4)
    rows, indices, ends, longest, lengths = flash_attn.unpad_input(hidden, torch.ones(2, 3))
    assert (ends.tolist(), longest, lengths.tolist()) == ([0, 3, 6], 3, [3, 3])
    torch.testing.assert_close(flash_attn.pad_input(rows, indices, 2, 3), hidden)


def test_lamb_keeps_two_moments_in_single_precision_and_goes_downhill() -> None:
    param = torch.nn.Parameter(torch.full((8,), 2.0))
    optimizer = apex.FusedLAMB([param], lr=0.1)
    for _ in range(5):
        before = float(param.square().sum())
        optimizer.zero_grad()
        param.square().sum().backward()
        optimizer.step()
        assert float(param.square().sum()) < before
    assert {one.dtype for one in optimizer.state[param].values()} == {torch.float32}


def test_norms_and_scales_of_many_tensors() -> None:
    tensors = [torch.full((4,), 3.0), torch.full((9,), 4.0)]
    together, each = apex.multi_tensor_l2norm(65536, None, [tensors], True)
    assert (together.item(), each.tolist()) == (pytest.approx(180**0.5), [6.0, 12.0])
    copies = [torch.zeros(4), torch.zeros(9)]
    apex.multi_tensor_scale(65536, None, [tensors, copies], 0.5)
    assert (copies[0][0].item(), tensors[0][0].item()) == (1.5, 3.0)
    apex.multi_tensor_scale(65536, None, [tensors, tensors], 0.5)
    assert tensors[1][0].item() == 2.0


DIVIDED = """
import os, torch, torch.distributed as dist, transformer_engine as te

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
given = dict(tp_size=2, tp_group=dist.group.WORLD, sequence_parallel=SEQUENCE, params_dtype=torch.bfloat16)
up = te.pytorch.LayerNormLinear(64, 256, parallel_mode="column", **given)
down = te.pytorch.Linear(256, 64, parallel_mode="row", **given)
assert (up.weight.shape, down.weight.shape) == ((128, 64), (64, 128))
assert up.weight.tensor_model_parallel and not down.bias.tensor_model_parallel
assert up.norm.weight.sequence_parallel is SEQUENCE
model = torch.nn.Sequential(up, down)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(2):
    x = torch.randn(16 if SEQUENCE else 32, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    out = model(x)
    assert out.shape == x.shape
    out.sum().backward()
    assert x.grad.shape == x.shape
    optimizer.step()
"""


@absent
@pytest.mark.parametrize("sequence", [False, True])
def test_layers_of_transformer_engine_send_what_tensor_parallelism_does(
    sequence: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Korthikanti et al. 2022: with parallel sequences two gathers and two scatters, and what is not kept is gathered again."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(DIVIDED.replace("SEQUENCE", str(sequence)), encoding="utf-8")
    ours = ["run", "--gpu", "H100", "--world", "2", "--stand-in", "transformer_engine", "-o", "result.json"]
    assert run([*ours, "train.py"]) == 0
    result = json.loads(Path("result.json").read_text(encoding="utf-8"))
    whole = 2 * 32 * 4 * 64
    sent = {(one["kind"], one["bytes"]): one["count"] for one in result["collectives"]}
    assert sent == (
        {("all_gather", whole): 3, ("reduce_scatter", whole): 2} if sequence else {("all_reduce", whole): 2}
    )


@absent
def test_a_module_of_a_stand_in_has_those_below_it() -> None:
    with Patches() as patches:
        finder.install(patches, ["transformer_engine"], lambda _: None)
        te = importlib.import_module("transformer_engine")
        assert te.common.recipe.DelayedScaling(margin=1).margin == 1
        left, right = torch.rand(3, 5), torch.rand(4, 5)
        assert torch.equal(te.pytorch.cpp_extensions.general_gemm(left, right, layout="TN")[0], right @ left.T)
