"""Training steps on one H100, as TorchSim measured them (Purandare et al., table 16).

What the table does not say is in the scripts of its experiments (github.com/sanketpurandare/mem-run-estimator, November 2024):
Gemma is ``google/gemma-2b``, CLIP ``clip-vit-large-patch14-336`` with 20 words, ViT that of 632 million parameters; *HP* is
float16, *MP* autocast to it; Adam runs kernel by kernel; Llama and Gemma recompute their feed-forward networks and norms, CLIP
and ViT whole blocks, as ``torch.utils.checkpoint`` does. transformers then repeated keys and values, and copied the logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from triosim.models import Gemma, Llama
from triosim.models.catalogue import MODELS
from validation.steps.command import Command, CommandFormat
from validation.steps.rows import Record, Row

_NETWORK = "modules=mlp,input_layernorm,post_attention_layernorm"
#: What is trained by the name in the table, and what is recomputed where activations are checkpointed.
_MODELS = {
    "GEMMA 2B": ("gemma-2b", _NETWORK),
    "VIT": ("vit_h_14", "checkpoint"),
    "CLIP": ("clip-vit-l-14-336", "checkpoint"),
    "LLAMA": ("llama3.2-1b", _NETWORK),
}
_PRECISIONS = {"FP": ("fp32", None), "HP": ("fp16", None), "MP": ("fp16", "mixed")}
_SIZE, _AGAIN, _TIME = "SEQ LENGTH IMG SIZE", "ACTIVATION CHECKPOINTING", "ACTUAL (MS)"
#: Model, batch, words or pixels, precision, checkpointing, measured milliseconds, and what TorchSim's learned models say.
_TABLE = (
    ("GEMMA 2B", 2, "4096", "HP", "TRUE", 424.03, 426.36),
    ("GEMMA 2B", 4, "2048", "HP", "TRUE", 407.84, 409.33),
    ("GEMMA 2B", 4, "1024", "FP", "TRUE", 1605.04, 1579.44),
    ("GEMMA 2B", 8, "1024", "HP", "FALSE", 356.99, 361.40),
    ("VIT", 32, "224", "FP", "FALSE", 795.94, 780.23),
    ("VIT", 64, "224", "FP", "TRUE", 1820.54, 1851.27),
    ("VIT", 128, "224", "HP", "TRUE", 395.18, 451.91),
    ("VIT", 256, "224", "HP", "TRUE", 764.06, 885.13),
    ("CLIP", 32, "20/336", "FP", "FALSE", 936.18, 950.12),
    ("CLIP", 64, "20/336", "FP", "TRUE", 2193.21, 2299.78),
    ("LLAMA", 1, "16384", "HP", "TRUE", 616.67, 620.61),
    ("LLAMA", 2, "8192", "HP", "TRUE", 525.06, 513.50),
    ("LLAMA", 4, "4096", "HP", "TRUE", 458.82, 459.63),
    ("LLAMA", 8, "2048", "FP", "TRUE", 3199.76, 3236.30),
)


class OneGpu(CommandFormat):
    """Training steps on one H100."""

    name = "one-gpu"
    columns = ("MODEL", "BATCH SIZE", _SIZE, "PRECISION", _AGAIN, _TIME)
    asked: ClassVar[Mapping[str, float]] = {"step time": 0.10}
    published: ClassVar[Mapping[str, str]] = {"step time": "TorchSim 10%; 3.4% by the predictions that it prints"}

    def read(self, record: Record) -> Row:
        """One row a record."""
        return _row(record)

    def built_in(self) -> list[Row]:
        """The rows of the table."""
        rows = []
        for *cells, learned in _TABLE:
            values = dict(zip(self.columns, map(str, cells), strict=True))
            rows.append(replace(_row(Record(values, "TorchSim, table 16")), published=learned))
        return rows


def _row(record: Record) -> Row:
    model = record.one_of("MODEL", tuple(_MODELS))
    precision = record.one_of("PRECISION", tuple(_PRECISIONS))
    size, known = record.text(_SIZE), MODELS[_MODELS[model][0]]
    first, _, image = size.partition("/") if known.sequence else ("", "", size)
    pixels = str(getattr(known, "image", ""))
    record.check(image == pixels, f"'{_SIZE}' is '{size}'", f"{model} reads images of {pixels or 'no'} pixels")
    record.check(not known.sequence or first.isdigit(), f"'{_SIZE}' is '{size}'", "give the words of a sample")
    batch, checkpoints = record.whole("BATCH SIZE"), record.one_of(_AGAIN, ("TRUE", "FALSE")) == "TRUE"
    name, again = _MODELS[model]
    dtype, mixed = _PRECISIONS[precision]
    command = Command.of(
        f"{name}(style=transformers-2024)" if isinstance(known, (Gemma, Llama)) else name,
        gpu="H100-SXM",
        batch_size=batch,
        seq=int(first) if first else None,
        dtype=dtype,
        precision=mixed,
        recompute=again if checkpoints else None,
    )
    label = f"{model} batch={batch} size={size} {precision}{' checkpoints' if checkpoints else ''}"
    return Row(label, model, record.number(_TIME), "ms", command, gpu="H100-SXM", framework="PyTorch")


FORMATS = (OneGpu(),)
