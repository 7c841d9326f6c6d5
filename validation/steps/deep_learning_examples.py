"""Training steps of NVIDIA's DeepLearningExamples on A100s and V100s under PyTorch: images, BERT, BART and the Transformer.

A step's time follows from samples or words a second. What a row leaves open is in the examples' scripts: images a GPU, with
their channels last in mixed precision, and SSD's in all; LAMB, whose time is taken as that of Adam; 384 words of fine-tuned
BERTs; sentences of 32 words for translation, about the mean of WMT'14 in pieces of words; articles of CNN of about 800 pieces
and summaries of about 100 for BART (See et al. 2017: 781 and 56 words), as many FLOPs as 400 of both. Each GPU sorts its
articles by itself (``--sortish_sampler``), so that of several GPUs one mostly has articles of 1,024 pieces, the longest that
are left, and the others wait for it: as many FLOPs as 512 of both. BERTs in fp16 are kept in
it, with an optimizer on fp32 copies (``--allreduce_post_accumulation_fp16``; apex's O2 for fine-tuning), and predict masked
words alone. Their pretraining reads ``phase1/unbinned`` and ``phase2/bin_size_64``: samples of 128 words are padded to it,
those of 512, half of which Wikipedia fills (Krell et al. 2021, arXiv 2107.02027), to the end of their bin of 64. Mixed
precision of others is autocast to fp16. BERT's and BART's attention is its products: they are from before FlashAttention. Other
frameworks than PyTorch, and what is neither a plain transformer nor a plain convolutional network, are out of scope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from triosim import gpus
from triosim.errors import OptionError
from validation.steps.command import Command, CommandFormat, OutOfScope, axes
from validation.steps.rows import Record, Row

#: Images a GPU of convolutional networks, in mixed precision and in fp32 or TF32, by GPU: ``configs.yml`` of the examples.
_BATCHES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "A100": {
        "resnet50": (256, 256),
        "resnext101": (128, 128),
        "se": (128, 128),
        "b0": (256, 256),
        "b4": (128, 64),
        "SSD": (64, 32),
    },
    "V100-32GB": {
        "resnet50": (256, 112),
        "resnext101": (128, 64),
        "se": (112, 64),
        "b0": (256, 128),
        "b4": (64, 32),
        "SSD": (64, 32),
    },
    "V100-16GB": {
        "resnet50": (256, 112),
        "resnext101": (128, 64),
        "se": (112, 64),
        "b0": (128, 64),
        "b4": (32, 16),
        "SSD": (64, 32),
    },
}
#: Model, and its name among the batches, by the name in the row.
_IMAGES = {
    "resnet50v1.5": ("resnet50", "resnet50"),
    "resnext101-32x4d": ("resnext101_32x8d(width=4)", "resnext101"),
    "se-resnext101-32x4d": ("seresnext101_32x4d", "se"),
    "SSD": ("ssd300", "SSD"),
    "efficientnet-b0": ("efficientnet_b0", "b0"),
    "efficientnet-b4": ("efficientnet_b4", "b4"),
    "efficientnet-widese-b0": ("efficientnet_b0(wide=true)", "b0"),
    "efficientnet-widese-b4": ("efficientnet_b4(wide=true)", "b4"),
}
#: Parts of the name of what is out of scope: Transformer-XL carries a memory of words from step to step.
_OTHER = (
    *("Recommendation", "Forecasting", "Speech", "DrugDiscovery", "Segmentation", "Detection/MaskRCNN"),
    *("Detection/Efficientdet", "Transformer-XL"),
)
_WORDS_OF_SENTENCE = 32
#: Words of a sample as batches have them, by a sample's length: those of 512 are in bins of 64 (``phase2/bin_size_64``).
_WORDS = {"128": 128, "512": 288}
#: BERT with its vocabulary padded to a multiple of 8.
PRETRAINED, FINE_TUNED = "bert-large(vocab=30528, masked=0.15)", "bert-large(vocab=30528, head=answers)"
_WORDS_OF_FINE_TUNING = 384
#: Words of an article, and as many of its summary, on one GPU and on several.
_WORDS_OF_SUMMARY = (400, 512)


class DeepLearningExamples(CommandFormat):
    """Rows of the examples' pages."""

    name = "deep-learning-examples"
    columns = ("model_file", "section", "gpus", "batch_etc", "precision", "metric", "value", "row")
    tables = ("steps/deep_learning_examples.csv.gz",)
    sample = 48
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.15}

    def read(self, record: Record) -> Row:
        """One row a record."""
        framework, _, path = record.text("model_file").partition("/")
        if framework != "PyTorch":
            raise OutOfScope(f"'{framework}' is not PyTorch", where=record.where)
        if any(part in path for part in _OTHER):
            raise OutOfScope(f"'{path}' is no plain transformer or convolutional network", where=record.where)
        gpu, count, precision = _gpu(record), record.whole("gpus"), record.text("precision")
        read = {"BERT": _bert, "BART": _summary, "Transformer": _translation}.get(path.rpartition("/")[2])
        model, samples, options = _images(record, gpu, path) if read is None else read(record)
        parts = options.get("micro_batches") or 1
        command = Command.of(
            model,
            gpu=gpu,
            parallel=axes(ddp=count),
            dtype="fp32" if precision in ("FP32", "TF32") else "fp16",
            products="tf32" if precision == "TF32" else None,
            micro_batch_size=samples,
            **{"precision": "mixed" if precision == "mixed/FP16" else None} | options,
        )
        label = f"{path} on {count} {gpu} {samples * parts} {precision}"
        words = _WORDS_OF_SENTENCE if read is _translation else 1
        measured = count * samples * parts * words / record.number("value")
        return Row(label, model, measured, "s", command, gpu=gpu, framework="PyTorch")


def _images(record: Record, gpu: str, path: str) -> tuple[str, int, dict[str, Any]]:
    """Return a convolutional network, images a GPU, and options: with mixed precision the examples have channels last."""
    row, mixed = record.text("row"), record.text("precision") == "mixed/FP16"
    said, name = re.search(r"Model=([\w-]+)", row), path.rpartition("/")[2]
    name = said[1] if said else name
    if name not in _IMAGES:
        raise OptionError(
            f"'{name}' is not described", where=record.where, fix=f"known: {', '.join((*_IMAGES, 'BERT'))}"
        )
    model, batches = _IMAGES[name]
    count = re.search(r"Batch size / GPU=(\d+)", row)
    board = "A100" if gpu.startswith("A100") else gpu.replace("-SXM2", "")
    usual = _BATCHES[board][batches][0 if mixed else 1]
    last = mixed or path.endswith("SSD")  # whose --data-layout is channels_last if nobody asks for another one
    options = {"optimizer": "sgd", "image_layout": "channels-last" if last else None}
    return model, int(count[1]) if count else usual, options


def _translation(record: Record) -> tuple[str, int, dict[str, Any]]:
    """Return the model, sentences and options; of a pair of words a GPU the first is that of mixed precision."""
    said = re.search(r"Batch size / GPU=(\d+)(?:/(\d+))?", record.text("row"))
    record.check(said is not None, "no 'Batch size / GPU'", "give the words of a GPU")
    assert said is not None
    words = int(said[2] if said[2] and record.text("precision") != "mixed/FP16" else said[1])
    options = {"seq": _WORDS_OF_SENTENCE, "optimizer": "fused-adamw"}
    return "transformer-big", words // _WORDS_OF_SENTENCE, options


def _summary(record: Record) -> tuple[str, int, dict[str, Any]]:
    """Return the model, samples and options; the first number of a pair is that of TF32. Pretraining names the words."""
    said = re.search(r"Batch size / GPU[^=|]*=(\d+), (\d+)", record.text("row"))
    record.check(said is not None, "no 'Batch size / GPU'", "give both of a pair")
    assert said is not None
    samples = int(said[2 if record.text("precision") == "mixed/FP16" else 1])
    length = re.search(r"Sequence [Ll]ength=(\d+)", record.text("row"))
    words = length[1] if length else _WORDS_OF_SUMMARY[record.whole("gpus") > 1]
    return "bart-large", samples, {"seq": words, "attention": "math", "optimizer": "fused-adamw"}


def _bert(record: Record) -> tuple[str, int, dict[str, Any]]:
    """Return the model, the samples of a micro-batch, and options; the first number of a pair is that of fp32 or TF32."""
    place = int(record.text("precision") == "mixed/FP16")
    row = record.text("row")
    batch, steps = (_pair(name, row, place) for name in ("Batch size / GPU", "Accumulation steps"))
    record.check(batch is not None, "no 'Batch size / GPU'", "give both of a pair")
    assert batch is not None
    if steps and "Accumulated" not in row:
        batch //= steps  # the page's batch is the accumulated one there
    length = re.search(r"Sequence length=(\d+)", row)
    options = {
        "seq": _WORDS.get(length[1], length[1]) if length else _WORDS_OF_FINE_TUNING,
        "micro_batches": steps if steps and steps > 1 else None,
        "attention": "math",
        "precision": None,
        "optimizer": "master-adamw" if place else "fused-adamw",
    }
    return PRETRAINED if length else FINE_TUNED, batch, options


def _pair(name: str, row: str, place: int) -> int | None:
    found = re.search(rf"(?:^|\| ){name}[^=|]*=(\d+) and (\d+)", row)
    return int(found[place + 1]) if found else None


def _gpu(record: Record) -> str:
    section = record.text("section")
    found = re.search(r"(A100|V100)\D*(\d+)\s*GB?", section) or re.search(r"DGX-[12] With (\d+)G", section)
    record.check(found is not None, f"'section' is '{section}'", "known: A100, V100")
    assert found is not None
    board, memory = found.groups() if len(found.groups()) == 2 else ("V100", found[1])
    return gpus.find(f"A100-SXM-{memory}GB" if board == "A100" else f"V100-SXM2-{memory}GB").name


FORMATS = (DeepLearningExamples(),)
