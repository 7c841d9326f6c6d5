"""Rows that are predicted by plain commands: what a row's command says, and that the command is what runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triosim.errors import OptionError
from triosim.models import GPT
from validation import end_to_end
from validation.steps import formats
from validation.steps.command import Command, OutOfScope
from validation.steps.errors import Predicted, Refused, groups
from validation.steps.megatron_command import fuses_softmax, llama_flops
from validation.steps.rows import Row

MPT = (
    "section,model,seq_len,gpus,gpu,precision,fsdp_mixed_precision,sharding_strategy,activation_checkpointing,"
    "activation_cpu_offload,micro_batch_size,grad_accum,step_time_s"
)
MEGATRON = (
    "table,gpu,params_b,heads,hidden,layers,tp,pp,dp,gpus,batch_sequences,micro_batch,seq_len,vocab,precision,"
    "tflops_per_gpu,step_time_s_derived,recompute,model,cp,vp,ep"
)
BIG = (
    "gpu,gpus,model_size,hidden,layers_of_context,heads_of_context,seq_len,dp,tp,pp,mbs,gbs,seconds_per_iteration,"
    "tflops_reported,notes"
)


def row(folder: Path, header: str, *lines: str) -> Row:
    path = folder / "steps.csv"
    path.write_text("\n".join((header, *lines)) + "\n")
    return formats.read(path)[1][-1]


def test_a_row_of_mpt_is_a_command(tmp_path: Path) -> None:
    line = "large,7b,8192,16,a100_80gb,bf16,PURE,SHARD_GRAD_OP,True,False,4,3,10"
    assert str(row(tmp_path, MPT, line).case) == (
        "triosim simulate 'mpt-7b(sequence=8192)' --gpu A100-SXM-80GB --topology 'dgx-a100(gpus=16, network=roce)' "
        "--parallel fsdp=16 --attention triton --micro-batch-size 4 --micro-batches 3 --recompute checkpoint "
        "--gradient-dtype bf16 --option shard_dtype=fp32 --option reshard=no"
    )


def test_the_command_is_what_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mpt.csv"
    path.write_text(f"{MPT}\ns,125m,512,8,a100_40gb,bf16,PURE,FULL_SHARD,False,False,2,1,0.02\n")
    assert end_to_end.main(["--table", str(path), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert (found["line"], found["group"]) == (2, "mpt, A100-SXM-40GB, llm-foundry")
    assert found["low"] < found["predicted"] < found["high"]
    assert found["error"] == pytest.approx(found["predicted"] / 0.02 - 1)
    assert end_to_end.main(["--table", str(path), "--commands"]) == 0
    assert capsys.readouterr().out.startswith(f"{found['command']}  # mpt:2: ")


def test_megatron_core_interleaves_layers_and_2021_does_not_overlap(tmp_path: Path) -> None:
    new = "a,H100-SXM5-80GB,70,64,8192,84,8,2,48,768,384,?,4096,131072,bf16,419,2.2,?,,,,"
    assert {"--virtual-stages", "42", "fsdp=48,tp=8,pp=2", "overlap=ring"} <= set(
        row(tmp_path, MEGATRON, new).case.arguments
    )
    old = (
        "a,A100-SXM4-80GB,145.6,,12288,80,8,8,24,1536,2304,?,2048,51200,fp16,148,24.8,full activation recomputation,,,,"
    )
    said = row(tmp_path, MEGATRON, old).case.arguments
    assert {"dp=24,tp=8,pp=8", "math", "full", "fp16"} <= set(said)
    assert said[said.index("--micro-batches") + 1] == "48"  # 2,304 samples, 24 replicas, 2 in a micro-batch


def test_a_step_time_that_is_not_printed_follows_from_flops(tmp_path: Path) -> None:
    """8 FLOPs a parameter of the layers and token: 12 x 2 x 128 x 128 parameters, 4 x 64 tokens, on 8 GPUs at 1 TFLOP/s."""
    line = "A100-SXM4-80GB (Jean Zay),8,0B,128,2,8,64,,2,2,1,4,,1,"
    found = row(tmp_path, BIG, line)
    assert found.measured == pytest.approx(8 * 12 * 2 * 128**2 * 256 / 8e12)
    assert "zero1=2,tp=2,pp=2" in found.case.arguments


def test_launches_block_on_bigscience_a100s_alone(tmp_path: Path) -> None:
    """``CUDA_LAUNCH_BLOCKING=1``; one card of 100 Gb/s is what NCCL used of a node's four."""
    sizes = ",8,0B,128,2,8,64,,2,2,1,4,,1,"
    new, old = (row(tmp_path, BIG, gpu + sizes).case.arguments for gpu in ("A100-SXM4-80GB", "V100-SXM2-32GB"))
    assert new[new.index("--run-ahead") + 1] == "1"
    assert "gpus_per_nic: 8" in new[new.index("--topology") + 1]
    assert "--run-ahead" not in old


def test_heads_that_do_not_divide_the_features_are_64(tmp_path: Path) -> None:
    line = "A100-SXM4-80GB (Jean Zay),384,181B,14336,72,96,2048,8,8,6,1,2048,120,,"
    assert row(tmp_path, BIG, line).label.split()[3] == "a=64"


def test_megatron_fuses_its_softmax_for_multiples_of_four_heads_and_samples(tmp_path: Path) -> None:
    """16 heads on 8 ranks are 2 for one sample, 4 for two; no kernel takes more than 2,048 words."""
    assert [fuses_softmax(16, 1024, 8, samples) for samples in (1, 2)] == [False, True]
    assert [fuses_softmax(64, words, 8, 1) for words in (2048, 4096)] == [True, False]
    line = "A100-SXM4-80GB (Jean Zay),384,181B,14336,72,112,2048,8,8,6,{},2048,120,,"
    one, two = (row(tmp_path, BIG, line.format(samples)).case.arguments[0] for samples in (1, 2))
    assert (one.endswith("fused_softmax=false)"), two.endswith("sequence=2048)")) == (True, True)


def test_a_mixture_counts_the_experts_of_a_token() -> None:
    """NeMo prints 734 TFLOP/s for 1,524 tokens a second of Llama 3 70B, samples of 8,192."""
    from triosim.models.catalogue import MODELS

    assert llama_flops(MODELS["llama3-70b"], 8192) == pytest.approx(734e12 / 1524, rel=1e-3)  # type: ignore[arg-type]


def test_options_that_a_command_does_not_have_are_one_line() -> None:
    with pytest.raises(OptionError, match="No such option: --speed"):
        Command.of("gpt2", speed=3).run()


def test_a_refused_row_counts_as_a_whole_error_unless_it_is_out_of_scope() -> None:
    """Errors of 10% and 30%, and a refused row: (0.1 + 0.3 + 1) / 3."""
    rows = [Row("a", "m", 1.0, "s", None, gpu="A100", framework="f", line=n) for n in (2, 3)]
    found = [Predicted("mpt", "t", rows[0], 1.1, 0.9, 1.2), Predicted("mpt", "t", rows[1], 0.7, 0.6, 0.8)]
    refused = [Refused("t", OptionError("no"), 4, "t, A100, f"), Refused("t", OutOfScope("LoRA"), 5, "t, A100, f")]
    (one,) = groups(found, refused)
    assert (one.group, one.rows, one.refused) == ("t, A100, f", 2, 1)
    assert (one.mean, one.bias, one.covered) == (pytest.approx(1.4 / 3), pytest.approx(-0.1), 0.5)
    assert [each.plain()["out_of_scope"] for each in refused] == [False, True]


def test_a_named_model_has_the_parameters_that_llm_foundry_prints() -> None:
    """MPT 7B with 2,048 positions: 6,658,859,008."""
    from triosim.models.catalogue import MODELS

    model = MODELS["mpt-7b"]
    assert isinstance(model, GPT)
    of_layer = 12 * model.hidden**2 + 13 * model.hidden
    assert model.layers * of_layer + (model.vocab + 2048 + 2) * model.hidden == 6_658_859_008


BRIDGE = (
    "release,phase,model,system,gpus,precision,global_batch,micro_batch,seq_len,fsdp,tp,pp,cp,vp,ep,grad_accum,"
    "tokens_per_s_per_gpu,model_tflops_per_gpu,step_time_s"
)


def test_values_in_parentheses_are_of_another_precision(tmp_path: Path) -> None:
    line = "25.09,Pre,LLAMA3_70B,DGX-GB200,64,FP8-CS (FP8-MX),128,2,8192,64 (0),1 (2),1 (4),1,1 (5),1.0,1 (16),1,1,4.1"
    assert str(row(tmp_path, BRIDGE, line).case) == (
        "triosim simulate llama3-70b --micro-batch-size 2 --parallel fsdp=64 --stack te-fp8 --products fp8-current --gpu GB200 "
        "--topology 'gb200-nvl72(gpus=64, gpus_per_node=64)' --seq 8192"
    )


def test_experts_are_divided_over_replicas_and_balanced(tmp_path: Path) -> None:
    """Of 256 GPUs with tp=2 and pp=8 there are 16 replicas, so that of ep=32 these hold different experts."""
    line = "26.02,Pre,Qwen3_235B_a22B,DGX-H100,256,BF16,8192,1,4096,0,2,8,1,4,32.0,,1,1,81.4"
    said = row(tmp_path, BRIDGE, line).case.arguments
    assert {"fsdp=16,ep=16,tp=2,pp=8", "load=balanced", "megatron", "qwen3-235b-a22b"} <= set(said)
    assert "--ep-transport" not in said  # its recipe takes NCCL's all-to-all outside of racks
    assert "hybridep" in row(tmp_path, BRIDGE, line.replace("DGX-H100", "DGX-GB200")).case.arguments


def test_mixtures_in_mxfp8_are_one_graph_from_a_release_on(tmp_path: Path) -> None:
    """In which passes run side by side; a pipeline must be interleaved for that."""
    line = "26.06.01 NeMo,Pre,DeepSeekV3,DGX-GB300,256,MXFP8,4096,1,4096,0,1,2,1,8,32.0,,1,1,10.4"
    said = row(tmp_path, BRIDGE, line).case.arguments
    assert "--ep-overlap" in said
    assert said[said.index("--host-overhead") + 1] == "none"
    for other in (("26.06", "26.04"), ("MXFP8", "FP8"), ("2,1,8,32", "2,1,,32"), ("DeepSeekV3", "GPT OSS 120B")):
        assert "--ep-overlap" not in row(tmp_path, BRIDGE, line.replace(*other)).case.arguments
    later = line.replace("26.06", "26.08").replace("DeepSeekV3", "GPT OSS 120B")
    assert "--ep-overlap" in row(tmp_path, BRIDGE, later).case.arguments


AUTOMODEL = (
    "Model,#GPUs,GBS,MBS,LBS,GA,Seq Length,TP,PP,CP,EP,VP,FSDP,Kernel Optimizations,"
    "Time per Global Step (s),phase,system"
)


def test_a_pipeline_of_automodel_runs_once_for_each_local_batch(tmp_path: Path) -> None:
    """512 samples of 32 replicas in two runs: 8 of one sample in each, half of 8.86 s; blocks run again."""
    line = "Kimi K2,256,512,1,8,2,4096,1,8,1,32,4,32,TE + DeepEP,8.86,Pre-Training,System: DGX-H100"
    found = row(tmp_path, AUTOMODEL, line)
    said = found.case.arguments
    assert (found.measured, said[said.index("--micro-batches") + 1]) == (4.43, "8")
    assert {"checkpoint", "load=consecutive", "deepep_dispatch=as-is", "interleaved"} <= set(said)


@pytest.mark.parametrize(
    ("model", "phase", "why"),
    [
        ("Nemotron_3_Nano", "Pre-Training", "Mamba"),
        ("DeepSeekV4 Flash", "Pre-Training", "sparse attention"),
        ("LLAMA3_70B", "LoRA Performance", "adapters"),
    ],
)
def test_what_is_not_described_is_out_of_scope(tmp_path: Path, model: str, phase: str, why: str) -> None:
    with pytest.raises(OutOfScope, match=why):
        row(tmp_path, BRIDGE, f"26.02,{phase},{model},DGX-H100,8,BF16,8,1,4096,0,1,1,1,,,,1,1,1")


def test_long_samples_of_nemo_are_of_llama_2_7b(tmp_path: Path) -> None:
    """16 samples of 262,144 tokens on 256 GPUs at 1,214 tokens a second each."""
    header = (
        "container,system,phase,precision_of_text,model,gpus,global_batch,micro_batch,seq_len,tp,pp,cp,vp,"
        "tokens_per_s_per_gpu,step_time_s,task,Sequence Length (K)"
    )
    found = row(tmp_path, header, "c,DGX-H100,Long,FP8,,256,16,1,,4,1,8.0,1.0,1214,,,256.0")
    assert found.measured == pytest.approx(16 * 262144 / 256 / 1214)
    assert found.case.arguments[0] == "llama2-7b(sequence=262144)"
    assert "flash" in found.case.arguments


PUBLISHED = (
    "model,gpu,gpus,network,parallelism,activation_checkpointing,micro_batch,seq_len,precision,tokens_per_s_per_gpu,"
    "step_time_s,software,batch_per_dp,samples_per_s,tflops_per_gpu,global_batch"
)


@pytest.mark.parametrize(
    ("line", "seconds", "said"),
    [
        (
            "Llama2-7b,H100-SXM5-80GB,96,800 Gb/s a node,HSDP,none,2,4096,bf16,9600,0.8533,PyTorch 2.2-2.4 nightly (2024),,,,",
            0.8533,
            {"dp=12,fsdp=8", "dgx-h100(gpus=96, inter_node={bandwidth: 100 Gb/s, network: roce})", "compiled"},
        ),
        (  # 64 samples of 6 x 12 layers ... are counted as 72 l h^2 (1 + s / 6h) FLOPs a token and, computed again, 4/3 of it
            '"GPT 175B (2 layers, hidden 128, heads 2)",A100-SXM4-80GB,8,,ZeRO-3 only,,8,96,fp16,,,DeepSpeed 2022-07,,,1,',
            72 * 2 * 128**2 * (1 + 96 / 6 / 128) * 4 / 3 * 64 * 96 / 8e12,
            {"fsdp=8", "full", "deepspeed", "gpt3-175b(layers=2, hidden=128, heads=2)"},
        ),
        (  # 48 samples at 3.27 a second
            "Llama-like 70B,H200,16,,zero2,,,4096,,,,Colossal-AI 2025,48,3.27,469,",
            48 / 3.27,
            {"zero2=16", "checkpoint", "3", "dgx-h200(gpus=16)"},
        ),
    ],
)
def test_single_rows_of_projects_are_commands(tmp_path: Path, line: str, seconds: float, said: set[str]) -> None:
    found = row(tmp_path, PUBLISHED, line)
    assert found.measured == pytest.approx(seconds)
    assert said <= set(found.case.arguments)


def test_more_gpus_share_a_long_sample_where_samples_are_fewer_than_replicas(tmp_path: Path) -> None:
    """512 GPUs by tp=4 and cp=8 leave 16 replicas for 8 samples."""
    line = "LLAMA3-8B,B200 (DGX B200),512,,TP4 PP1 DP4 CP8,,,524288,FP8,,,NeMo 25.04.rc2,,,607,8"
    assert "fsdp=8,cp=16,tp=4" in row(tmp_path, PUBLISHED, line).case.arguments


EXAMPLES = "model_file,section,gpus,batch_etc,precision,metric,value,row"
BERT = (
    "GPUs=8 | Batch size / GPU (FP32 and FP16)=4096 and 4096 | Accumulation steps (FP32 and FP16)=128 and 64 | "
    "Sequence length=128 | Throughput - FP32(sequences/sec)=387"
)


def test_a_batch_of_bert_is_accumulated_and_kept_in_half_precision(tmp_path: Path) -> None:
    """4,096 samples of a GPU in 64 micro-batches, on eight GPUs at 1,746 a second."""
    line = f"PyTorch/LanguageModeling/BERT,Pre-training NVIDIA DGX-1 With 32G,8.0,,mixed/FP16,T,1746.0,{BERT}"
    found = row(tmp_path, EXAMPLES, line)
    assert found.measured == pytest.approx(8 * 4096 / 1746)
    assert str(found.case) == (
        "triosim simulate 'bert-large(vocab=30528, masked=0.15)' --gpu V100-SXM2-32GB --parallel ddp=8 --dtype fp16 "
        "--micro-batch-size 64 --seq 128 --micro-batches 64 --attention math --optimizer master-adamw"
    )


def test_a_batch_of_bart_is_the_second_of_a_pair_in_half_precision(tmp_path: Path) -> None:
    """320 samples on eight GPUs at 390 a second."""
    batches = '"GPUs=8 | Batch size / GPU (TF32, BF16)=24, 40 | Throughput - TF32=243.03"'
    line = f"PyTorch/LanguageModeling/BART,8x A100 80GB,8.0,x,{{}},T,{{}},{batches}"
    half, single = (row(tmp_path, EXAMPLES, line.format(*said)) for said in (("mixed/FP16", 390), ("TF32", 243)))
    assert (half.measured, single.measured) == pytest.approx((320 / 390, 192 / 243))
    assert half.case.arguments[0] == "bart-large"


def test_other_frameworks_are_out_of_scope_and_other_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutOfScope, match="'MxNet' is not PyTorch"):
        row(tmp_path, EXAMPLES, "MxNet/RN50,8x A100 80GB,8,,FP32,T,1,x")
    with pytest.raises(OutOfScope, match="DLRM"):
        row(tmp_path, EXAMPLES, "PyTorch/Recommendation/DLRM,8x A100 80GB,8,,FP32,T,1,x")
    with pytest.raises(OptionError, match="is not described"):
        row(tmp_path, EXAMPLES, "PyTorch/LanguageModeling/GNMT,8x A100 80GB,8,,FP32,T,1,x")


def test_rows_out_of_scope_are_told_and_the_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "steps"
    folder.mkdir()
    good = "26.02,Pre,LLAMA3_8B,DGX-H100,8,BF16,8,1,8192,0,1,1,1,,,,1,1,1"
    lines = (BRIDGE, good, good.replace("LLAMA3_8B", "Nemotron_3_Nano"))
    (folder / "megatron_bridge.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("TRIOSIM_DATA", str(tmp_path))
    told: list[tuple[str, int]] = []
    ((_, name, rows),) = formats.shared("megatron-bridge", refuse=lambda table, _, line: told.append((table, line)))
    assert (name, [one.line for one in rows], told) == ("megatron_bridge", [2], [("megatron_bridge", 3)])


EXAMPLES = "model_file,section,gpus,batch_etc,precision,metric,value,row"


@pytest.mark.parametrize(
    ("line", "said", "seconds"),
    [
        (  # 8 x 256 images at 16,384 a second
            "PyTorch/Classification/ConvNets/efficientnet,NVIDIA A100 (8x A100 80GB),8,,mixed/FP16,img/s,16384,"
            "Model=efficientnet-widese-b0 | GPUs=8",
            "'efficientnet_b0(wide=true)' --gpu A100-SXM-80GB --parallel ddp=8",
            0.125,
        ),
        (  # 2,560 words are 80 sentences of 32
            "PyTorch/Translation/Transformer,NVIDIA DGX-1 (8x V100 16GB),1,,FP32,tok/s,10240,Batch size / GPU=5120/2560",
            "transformer-big --gpu V100-SXM2-16GB --dtype fp32 --micro-batch-size 80 --seq 32",
            0.25,
        ),
    ],
)
def test_a_row_of_the_examples_is_a_command_and_its_rate_a_time(
    tmp_path: Path, line: str, said: str, seconds: float
) -> None:
    found = row(tmp_path, EXAMPLES, line)
    assert said in str(found.case)
    assert found.measured == seconds


def test_a_network_with_a_memory_of_earlier_steps_is_out_of_scope(tmp_path: Path) -> None:
    with pytest.raises(OutOfScope, match="no plain transformer"):
        row(tmp_path, EXAMPLES, "PyTorch/LanguageModeling/Transformer-XL,Base model,1,,TF32,tok/s,41527,GPUs=1")


def test_the_passes_of_a_command_are_those_of_its_stages() -> None:
    """Eight micro-batches through four stages of two parts each; one GPU has one."""
    given = {"parallel": "fsdp=2,pp=4", "micro_batches": 8, "virtual_stages": 2}
    assert Command.of("llama3-8b", **given).passes == 64
    assert Command.of("llama3-8b").passes == 1
