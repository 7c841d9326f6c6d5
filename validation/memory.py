"""Peak memory of training steps captured without a GPU, against what TorchSim's authors measured on an H100 (their table 19).

``python -m validation.memory --table 19 [--only llama]`` prints their figures and ours. It needs torch, transformers and, for
two of the models, timm; nothing is downloaded: the models are built from their published configurations, as the authors' public
experiment scripts build them (``gpt2-large``, ``t5-large``, ``Llama-3.2-1B``, ``gemma-2b``, ``clip-vit-large-patch14-336``,
``vit_huge_patch14_clip_224``, ``convnextv2_huge``; Adam; half precision is float16). What they measured is the peak of
active bytes over five steps. The models' code matters more than anything else: transformers 4.47, of the time of the
measurements, keeps other tensors than its later versions do, so ``rows`` compares with that one alone.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from triosim.memory import MemoryReport, analyse
from validation.report import DataAbsent, Row, relative

#: Minutes, with PyTorch: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

GIB = 2**30

#: The largest error that is claimed for a model without checkpointing.
CLAIM = 0.005

#: The version of transformers whose steps are those that were measured.
CODE = "4.47"


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table: ``size`` is the sequence length, or the side of an image; sizes of memory are in GiB."""

    model: str
    batch: int
    size: int
    precision: str
    checkpoint: bool
    estimated: float
    measured: float


def _cases(model: str, *rows: tuple[int, int, str, bool, float, float]) -> list[Case]:
    return [Case(model, *row) for row in rows]


TABLE_19 = [
    *_cases(
        "gemma_2b",
        (8, 512, "MP", False, 59.75, 59.81),
        (4, 1024, "FP", True, 43.34, 46.74),
        (8, 1024, "HP", False, 66.41, 66.47),
        (2, 2048, "FP", True, 43.38, 46.74),
        (2, 2048, "MP", False, 59.78, 59.84),
        (4, 2048, "HP", True, 44.96, 45.02),
        (2, 4096, "HP", True, 45.00, 45.06),
    ),
    *_cases(
        "clip",
        (32, 336, "FP", False, 39.85, 39.93),
        (64, 336, "FP", True, 12.81, 12.89),
        (64, 336, "HP", True, 6.41, 6.51),
        (64, 336, "MP", False, 47.42, 47.50),
        (128, 336, "HP", True, 10.18, 10.29),
    ),
    *_cases(
        "gpt2",
        (16, 512, "MP", False, 44.34, 44.47),
        (8, 1024, "MP", False, 44.34, 44.48),
        (16, 1024, "HP", False, 49.93, 49.95),
    ),
    *_cases(
        "t5",
        (6, 512, "MP", False, 32.06, 32.20),
        (2, 1024, "FP", True, 33.70, 33.75),
        (4, 1024, "HP", False, 49.08, 49.14),
        (1, 2048, "FP", True, 53.50, 53.55),
        (1, 2048, "HP", True, 38.69, 38.87),
        (1, 2048, "MP", True, 44.95, 45.00),
    ),
    *_cases(
        "llama_1b",
        (4, 1024, "FP", False, 33.04, 33.09),
        (4, 1024, "MP", False, 31.52, 31.58),
        (4, 2048, "HP", True, 24.94, 24.99),
        (8, 2048, "FP", True, 54.60, 54.63),
        (8, 2048, "HP", True, 42.97, 43.02),
        (4, 4096, "HP", True, 42.97, 43.02),
        (2, 8192, "HP", True, 42.98, 43.03),
        (1, 16384, "HP", True, 38.56, 38.61),
    ),
    *_cases(
        "convnext",
        (16, 224, "FP", False, 22.70, 22.98),
        (32, 224, "FP", True, 14.46, 14.67),
        (32, 224, "MP", False, 27.79, 28.02),
        (64, 224, "HP", False, 33.64, 33.91),
        (64, 224, "MP", False, 46.91, 47.18),
        (128, 224, "FP", True, 31.45, 31.54),
        (128, 224, "HP", True, 15.74, 15.86),
        (256, 224, "HP", True, 27.38, 27.51),
    ),
    *_cases(
        "vit",
        (32, 224, "FP", False, 27.45, 27.65),
        (64, 224, "FP", True, 11.29, 12.08),
        (64, 224, "HP", False, 23.92, 24.12),
        (64, 224, "MP", False, 31.29, 31.59),
        (128, 224, "HP", True, 7.74, 7.82),
        (256, 224, "HP", True, 11.94, 12.00),
    ),
]

#: Which modules are checkpointed, by class, as in the authors' scripts.
CHECKPOINTED = {
    "t5": ("T5LayerFF", "T5LayerNorm"),
    "llama_1b": ("LlamaMLP", "LlamaRMSNorm"),
    "gemma_2b": ("GemmaMLP", "GemmaRMSNorm"),
    "convnext": ("GlobalResponseNormMlp",),
    "vit": ("Block",),
    "clip": ("CLIPEncoderLayer",),
}


def rows() -> list[Row]:
    """The language models without checkpointing, in all three precisions, and the worst of them."""
    _need("torch", "transformers")
    version = importlib.metadata.version("transformers")
    if not version.startswith(CODE):
        raise DataAbsent(f"transformers {version} builds other steps than {CODE}, which was measured")
    quick = [case for case in TABLE_19 if case.model in ("gpt2", "llama_1b") and not case.checkpoint]
    errors = [relative(capture(case).peak_allocated / GIB, case.measured) for case in quick]
    return [Row("peak memory, GPT-2 large and Llama 1B", "TorchSim table 19, H100", len(quick), max(errors), CLAIM)]


def capture(case: Case) -> MemoryReport:
    """Capture the case's third step without a GPU, and return its memory on an H100."""
    import torch

    from triosim.tracer.fake_device import fake_capture

    usual = torch.get_default_dtype()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with fake_capture("H100-SXM") as captured:
                if case.precision == "HP":
                    torch.set_default_dtype(torch.float16)
                _train(case, steps=3)
        finally:
            torch.set_default_dtype(usual)
    gc.collect()
    return analyse(captured.trace, "H100-SXM")


def _train(case: Case, steps: int) -> None:
    import torch

    model, batch = MODELS[case.model](case)
    dtype = torch.float16 if case.precision == "HP" else torch.float32
    model = model.to(dtype=dtype).train()
    if case.checkpoint:
        from torch.distributed._composable import checkpoint

        for module in model.modules():
            if type(module).__name__ in CHECKPOINTED[case.model]:
                checkpoint(module, preserve_rng_state=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-4, eps=1e-6)
    for _ in range(steps):
        with _attention():
            with _autocast(case):
                loss = batch(model, dtype)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _autocast(case: Case) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast("cuda", torch.float16) if case.precision == "MP" else nullcontext()


@contextmanager
def _attention() -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        yield


Batch = Callable[[Any, Any], Any]


def _language(config: Any, kind: str, case: Case) -> tuple[Any, Batch]:
    import torch
    import transformers

    with torch.device("cuda"):
        model = getattr(transformers, kind).from_config(config)

    def batch(model: Any, _: Any) -> Any:
        shape = (case.batch, case.size)
        ids, labels = (torch.randint(0, config.vocab_size, shape, device="cuda") for _ in range(2))
        return model(input_ids=ids, labels=labels).loss

    return model, batch


def gpt2(case: Case) -> tuple[Any, Batch]:
    from transformers import GPT2Config

    return _language(GPT2Config(n_embd=1280, n_layer=36, n_head=20), "AutoModelForCausalLM", case)


def t5(case: Case) -> tuple[Any, Batch]:
    from transformers import T5Config

    config = T5Config(d_model=1024, d_ff=4096, d_kv=64, num_heads=16, num_layers=24, decoder_start_token_id=0)
    return _language(config, "AutoModelForSeq2SeqLM", case)


def llama_1b(case: Case) -> tuple[Any, Batch]:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128256,
        tie_word_embeddings=True,
        max_position_embeddings=131072,
    )
    return _language(config, "AutoModelForCausalLM", case)


def gemma_2b(case: Case) -> tuple[Any, Batch]:
    from transformers import GemmaConfig

    config = GemmaConfig(
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=18,
        num_attention_heads=8,
        num_key_value_heads=1,
        head_dim=256,
        vocab_size=256000,
        max_position_embeddings=8192,
    )
    return _language(config, "AutoModelForCausalLM", case)


def _vision(name: str, case: Case) -> tuple[Any, Batch]:
    _need("timm")
    import timm
    import torch

    with torch.device("cuda"):
        model = timm.create_model(name, pretrained=False, num_classes=1000)

    def batch(model: Any, dtype: Any) -> Any:
        images = torch.randn((case.batch, 3, case.size, case.size), dtype=dtype, device="cuda")
        labels = torch.randint(0, 1000, (case.batch,), device="cuda")
        return torch.nn.functional.cross_entropy(model(images), labels)

    return model, batch


def vit(case: Case) -> tuple[Any, Batch]:
    return _vision("vit_huge_patch14_clip_224", case)


def convnext(case: Case) -> tuple[Any, Batch]:
    return _vision("convnextv2_huge", case)


def clip(case: Case) -> tuple[Any, Batch]:
    import torch
    from transformers import CLIPConfig, CLIPModel

    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    vision |= {"patch_size": 14, "image_size": 336, "projection_dim": 768}
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=768)
    with torch.device("cuda"):
        model = CLIPModel(config)

    def batch(model: Any, dtype: Any) -> Any:
        images = torch.randn((case.batch, 3, case.size, case.size), dtype=dtype, device="cuda")
        ids = torch.randint(0, 49408, (case.batch, 20), device="cuda")
        mask = torch.ones((case.batch, 20), dtype=torch.int64, device="cuda")
        found = model(input_ids=ids, attention_mask=mask, pixel_values=images)
        same = torch.arange(case.batch, device="cuda")
        logits = found.image_embeds @ found.text_embeds.T * model.logit_scale.exp()
        cross_entropy = torch.nn.functional.cross_entropy
        return (cross_entropy(logits, same) + cross_entropy(logits.T, same)) / 2

    return model, batch


MODELS: dict[str, Callable[[Case], tuple[Any, Batch]]] = {
    "gpt2": gpt2,
    "t5": t5,
    "llama_1b": llama_1b,
    "gemma_2b": gemma_2b,
    "vit": vit,
    "convnext": convnext,
    "clip": clip,
}


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise DataAbsent(f"{package} is not installed")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m validation.memory", description=__doc__)
    parser.add_argument("--table", choices=["19"], default="19", help="which of TorchSim's tables")
    parser.add_argument("--only", help="a model's name, or the beginning of it", default="")
    options = parser.parse_args()
    print(
        "| model | batch | size | | checkpointing | measured GiB | TorchSim GiB | ours GiB | tensors | reserved | off | s |\n"
        "|---|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|"
    )
    for case in TABLE_19:
        if not case.model.startswith(options.only):
            continue
        began = time.perf_counter()
        try:
            report = capture(case)
        except DataAbsent as absent:
            print(f"| {case.model} | {case.batch} | {case.size} | {case.precision} | skipped: {absent} |")
            continue
        ours = report.peak_allocated / GIB
        tensors = (report.peak_live - report.usage.at_peak().get("workspace", 0)) / GIB
        print(
            f"| {case.model} | {case.batch} | {case.size} | {case.precision} | {'yes' if case.checkpoint else 'no'} "
            f"| {case.measured:.2f} | {case.estimated:.2f} | {ours:.2f} | {tensors:.2f} "
            f"| {report.peak_reserved / GIB:.2f} | {100 * (ours / case.measured - 1):+.1f}% "
            f"| {time.perf_counter() - began:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
