"""Single training steps that projects print of themselves: FSDP of IBM, TinyLlama, Colossal-AI, NeMo, DeepSpeed, nanoGPT.

Where a row has TFLOP/s or tokens a second alone, the step's time follows from them: FLOPs as the project counts them, without
halving attention; DeepSpeed counts a forward pass that is computed again. What rows leave open, by project: the cards of
fms-fsdp's nodes speak RoCE, and its selective checkpoints are whole blocks; TinyLlama and nanoGPT keep all activations;
DeepSpeed's BERT is NVIDIA's, with the 64 samples of its kernel's benchmark, and what that kernel fuses is taken to be what a
compiler does; nanoGPT's iteration is one micro-batch, since a batch of half a million tokens in 0.25 s is more than eight A100s
can compute. NeMo's replicas are what the other sizes leave of the GPUs; where samples are fewer, more GPUs share one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from triosim import gpus
from triosim.models.architectures.gpt import GPT
from triosim.models.architectures.llama import Llama
from triosim.models.catalogue import MODELS, find
from validation.steps import nemo
from validation.steps.command import Command, CommandFormat, axes
from validation.steps.deep_learning_examples import PRETRAINED
from validation.steps.megatron_command import Division, llama_flops, megatron_command
from validation.steps.rows import Record, Row

_MODELS = {
    "Llama2-7b": "llama2-7b",
    "Llama2-13b": "llama2-13b",
    "Llama2-34b": "codellama-34b",
    "Llama2-70b": "llama2-70b",
    "LLAMA2-7B": "llama2-7b",
    "LLAMA3-8B": "llama3-8b",
    "TinyLlama-1.1B": "tinyllama-1.1b",
    "Llama-like 70B": "llama2-70b",
    "BERT-Large": PRETRAINED,
    "nanoGPT GPT-2 124M": "gpt2",
}
_SIZES = re.compile(r"(\d+) layers, hidden (\d+), heads (\d+)")
_GPUS = ("A100-SXM4-80GB", "A100-SXM4-40GB", "A100-40GB", "H100-SXM5", "H200", "B200", "V100-SXM3-32GB")
#: GPUs of the catalogue by the names above that it does not have.
_CATALOGUE = {"H100-SXM5": "H100-SXM", "V100-SXM3-32GB": "V100-SXM2-32GB", "A100-40GB": "A100-SXM-40GB"}
_NEMO = re.compile(r"TP(\d+) PP(\d+) DP\d+ CP(\d+)")
_AXIS = re.compile(r"(dp|tp|pp)(\d+)")
_NODE = 8
_TOKENS_OF_TINY_LLAMA = 2 * 2**20


@dataclass(frozen=True, slots=True)
class Case:
    """A row's model and GPUs, and the samples of a step."""

    model: str
    gpu: str
    gpus: int
    sequence: int

    def tera_seconds(self, record: Record, samples: float, *, again: bool) -> float:
        """Return the seconds of a step from TFLOP/s a GPU; ``again``: the forward pass is counted twice."""
        model = find(self.model)
        assert isinstance(model, (Llama, GPT))
        if isinstance(model, Llama):
            flops = llama_flops(model, self.sequence)
        else:  # Narayanan et al. (2021), without the logits
            flops = 72 * model.layers * model.hidden**2 * (1 + self.sequence / 6 / model.hidden)
        rate = record.number("tflops_per_gpu") * 1e12 * self.gpus
        return flops * (4 / 3 if again else 1) * samples * self.sequence / rate


class Published(CommandFormat):
    """Single rows of several projects."""

    name = "published"
    columns = (
        *("model", "gpu", "gpus", "parallelism", "micro_batch", "seq_len", "precision", "tokens_per_s_per_gpu"),
        *("step_time_s", "software", "tflops_per_gpu", "batch_per_dp", "samples_per_s", "global_batch"),
    )
    tables = ("steps/published.csv",)
    sample = 22

    def read(self, record: Record) -> Row:
        """One row a record."""
        case = _case(record)
        software = record.text("software")
        read = next((make for name, make in _PROJECTS.items() if name in software), None)
        record.check(read is not None, f"'software' is '{software}'", f"known: {', '.join(_PROJECTS)}")
        assert read is not None
        measured, command = read(record, case)
        said = record.values.get("parallelism", "")
        label = f"{record.text('model')} on {case.gpus} {case.gpu} {said} s={case.sequence}"
        return Row(label, case.model, measured, "s", command, gpu=case.gpu, framework=software.split()[0])


def _case(record: Record) -> Case:
    said, sizes = record.text("model"), _SIZES.search(record.text("model"))
    sequence = record.whole("seq_len")
    name = next((name for start, name in _MODELS.items() if said.startswith(start)), "")
    if sizes:
        layers, hidden, heads = map(int, sizes.groups())
        name = f"gpt3-175b(layers={layers}, hidden={hidden}, heads={heads})"
    record.check(bool(name), f"'model' is '{said}'", f"known: {', '.join(_MODELS)}")
    longest = MODELS[name].sequence if name in MODELS else sequence
    if sequence > longest:
        name = f"{name}(sequence={sequence})"
    gpu = next((gpu for gpu in _GPUS if record.text("gpu").startswith(gpu)), "")
    record.check(bool(gpu), f"'gpu' is '{record.text('gpu')}'", f"known: {', '.join(_GPUS)}")
    return Case(name, gpus.find(_CATALOGUE.get(gpu, gpu)).name, record.whole("gpus"), sequence)


def _fms(record: Record, case: Case) -> tuple[float, Command]:
    """fms-fsdp: FSDP2's predecessor, compiled; HSDP shards over a node."""
    cards = int(re.match(r"(\d+) Gb/s a node", record.text("network"))[1]) // _NODE  # type: ignore[index]
    preset = "dgx-a100" if case.gpu.startswith("A100") else "dgx-h100"
    hybrid = record.text("parallelism") == "HSDP"
    return record.number("step_time_s"), Command.of(
        case.model,
        gpu=case.gpu,
        topology=f"{preset}(gpus={case.gpus}, inter_node={{bandwidth: {cards} Gb/s, network: roce}})",
        parallel=axes(dp=case.gpus // _NODE, fsdp=_NODE) if hybrid else axes(fsdp=case.gpus),
        seq=case.sequence,
        stack="compiled",
        micro_batch_size=record.whole("micro_batch"),
        recompute=None if record.text("activation_checkpointing") == "none" else "checkpoint",
    )


def _tiny(record: Record, case: Case) -> tuple[float, Command]:
    """TinyLlama on Lightning: FSDP in a node, replicated, fused kernels; 2 Mi tokens a step."""
    samples = _TOKENS_OF_TINY_LLAMA // case.sequence
    micro_batch = int(record.text("micro_batch").split()[0])
    return _TOKENS_OF_TINY_LLAMA / case.gpus / record.number("tokens_per_s_per_gpu"), Command.of(
        case.model,
        gpu=case.gpu,
        parallel=axes(ddp=case.gpus // _NODE, fsdp=_NODE),
        seq=case.sequence,
        stack="eager",
        kernels="fused",
        micro_batch_size=micro_batch,
        micro_batches=samples // case.gpus // micro_batch,
    )


def _colossal(record: Record, case: Case) -> tuple[float, Command]:
    """Colossal-AI: the printed batch is of all replicas, and all is computed again."""
    sizes = {axis: int(size) for axis, size in _AXIS.findall(record.text("parallelism"))}
    zero = record.text("parallelism")[:5]
    shared = sizes.get("tp", 1) * sizes.get("pp", 1)
    samples, replicas = record.whole("batch_per_dp"), case.gpus // shared
    stages = sizes.get("pp", 1)
    share = samples // replicas
    options: dict[str, Any] = {"micro_batch_size": 1, "micro_batches": share} if stages > 1 else {"batch_size": share}
    return samples / record.number("samples_per_s"), Command.of(
        case.model,
        gpu=case.gpu,
        topology=f"dgx-{case.gpu.lower()}(gpus={case.gpus})",
        parallel=axes(**{zero: replicas}, tp=sizes.get("tp", 1), pp=stages),
        tp_style="megatron" if "tp" in sizes else None,
        schedule="1f1b" if stages > 1 else None,
        seq=case.sequence,
        stack="eager",
        kernels="fused",
        recompute="checkpoint",
        **options,
    )


def _nemo(record: Record, case: Case) -> tuple[float, Command]:
    """NeMo on long samples, in fp8; replicas are what the other sizes leave of the GPUs."""
    found = _NEMO.fullmatch(record.text("parallelism"))
    record.check(found is not None, f"'parallelism' is '{record.text('parallelism')}'", "write TP1 PP1 DP2 CP1")
    assert found is not None
    tp, pp, cp = (int(size) for size in found.groups())
    samples = record.whole("global_batch")
    replicas = math.gcd(samples, case.gpus // (tp * pp * cp))
    division = Division(dp=replicas, tp=tp, pp=pp, cp=case.gpus // (tp * pp * replicas))
    model = find(case.model)
    preset = "dgx-b200" if case.gpu == "B200" else "dgx-h100"
    return case.tera_seconds(record, samples, again=False), megatron_command(
        case.model,
        getattr(model, "layers", 1),
        division,
        micro_batch=1,
        micro_batches=division.micro_batches(record, samples, 1),
        gpu=case.gpu,
        topology=f"{preset}(gpus={case.gpus})" if case.gpus > _NODE else None,
        seq=None if "(" in case.model else case.sequence,
        stack="te-fp8",
        attention=nemo.ATTENTION if "NeMo 24" in record.text("software") else None,
    )


def _deepspeed(record: Record, case: Case) -> tuple[float, Command]:
    """DeepSpeed: GPTs by ZeRO-3 alone, all computed again; BERT by its kernel on one GPU."""
    if case.gpus == 1:
        samples = int(record.number("batch_per_dp")) if record.has("batch_per_dp") else 64
        rate = record.number("samples_per_s")
        return samples / rate, Command.of(
            case.model,
            gpu=case.gpu,
            seq=case.sequence,
            dtype="fp16",
            kernels="compiled",
            attention="math",
            optimizer="master-adamw",
            batch_size=samples,
        )
    micro_batch = record.whole("micro_batch")
    seconds = case.tera_seconds(record, micro_batch * case.gpus, again=True)
    return seconds, Command.of(
        case.model,
        gpu=case.gpu,
        topology=f"dgx-a100(gpus={case.gpus})",
        parallel=axes(fsdp=case.gpus),
        seq=case.sequence,
        stack="deepspeed",
        micro_batch_size=micro_batch,
        recompute="full",
    )


def _nano(record: Record, case: Case) -> tuple[float, Command]:
    """nanoGPT: DDP, not compiled, with attention by its products, as before its flash attention."""
    return record.number("step_time_s"), Command.of(
        case.model,
        gpu=case.gpu,
        parallel=axes(ddp=case.gpus),
        seq=case.sequence,
        stack="eager",
        attention="math",
        precision="mixed",
        micro_batch_size=record.whole("micro_batch"),
        dropout=0.0,
    )


#: How a project's rows are read, by a part of ``software``.
_PROJECTS = {
    "PyTorch 2.2-2.4": _fms,
    "lit-gpt": _tiny,
    "Colossal-AI": _colossal,
    "NeMo": _nemo,
    "DeepSpeed": _deepspeed,
    "PyTorch 2.0 nightly": _nano,
}


FORMATS = (Published(),)
