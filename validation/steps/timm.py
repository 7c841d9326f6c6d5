"""Steps of timm's image models on one GPU in mixed precision: the tables of its ``results`` folder (Wightman; Apache-2.0).

timm's ``benchmark.py`` timed them without loading data: forward and backward passes and SGD, or forward passes. A row is what
two commands predict: the capture of ``validation/image_models/timm_step.py`` without a GPU, and its simulation. PyTorch is the
row's in what changes a step: before 2.0, attention was products and a softmax. Rows of compiled models are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import triosim
from triosim import gpus
from triosim.compute.pricing.prediction import with_predicted_times
from triosim.errors import OptionError
from validation.image_models.captured import Step, is_shipped, trace
from validation.steps.rows import Format, Prediction, Record, Row

_PHASES, _LAYOUTS = ("train", "infer"), ("nchw", "nhwc")
#: The first PyTorch with fused attention, as the column ``torch`` writes versions: 1.13 is 113, and 2.1.0 is 210.
_FUSED = 200


@dataclass(frozen=True, slots=True)
class TimmRow:
    """A step, its batch size and the GPU; ``compiled`` by ``torch.compile``."""

    step: Step
    batch_size: int
    gpu: str
    compiled: bool

    @property
    def command(self) -> str:
        """The commands that predict it, in the folder of the project."""
        step = self.step
        options = [f"--model {step.model} --image-size {step.image_size} --batch-size {self.batch_size}"]
        options += ["--train"] * step.train + ["--channels-last"] * step.channels_last
        options += ["--attention products"] * (step.attention == "products")
        script = f"validation/image_models/timm_step.py {' '.join(options)}"
        return f"triosim capture --fake --gpu {self.gpu} -o step.json.gz {script} && triosim simulate step.json.gz"


class ImageModels(Format):
    """Steps of training and inference of timm's models."""

    name = "timm"
    columns = ("phase", "gpu", "precision", "layout", "torch", "model", "batch_size", "img_size", "step_time_ms")
    tables = ("image_models/timm.csv.gz",)
    sample = 200
    asked: ClassVar[Mapping[str, float]] = {"training step": 0.12}

    def read(self, record: Record) -> Row:
        """One row a record."""
        phase, layout = record.one_of("phase", _PHASES), record.one_of("layout", _LAYOUTS)
        record.one_of("precision", ("amp",))
        step = Step(
            record.text("model"),
            record.whole("img_size"),
            phase == "train",
            layout == "nhwc",
            "fused" if record.whole("torch") >= _FUSED else "products",
        )
        compiled = record.values.get("compiled") == "yes"
        case = TimmRow(step, record.whole("batch_size"), gpus.find(record.text("gpu")).name, compiled)
        label = f"{step.name} on {case.gpu} batch={case.batch_size} torch={record.text('torch')}"
        quantity = "training step" if step.train else "inference"
        family = step.model.partition("_")[0]
        measured = record.number("step_time_ms")
        return Row(label, family, measured, "ms", case, quantity, gpu=case.gpu, framework=f"timm {phase} {layout}")

    def predicted(self, row: Row) -> Prediction:
        """Milliseconds."""
        case: TimmRow = row.case
        if case.compiled:
            raise OptionError("a compiled model", where=row.label, fix="models are captured as they are written")
        result = triosim.simulate(with_predicted_times(trace(case.step, case.batch_size, case.gpu)))
        return Prediction.of_step(result, row.unit)

    def command(self, row: Row) -> str:
        """Return the capture and the simulation."""
        case: TimmRow = row.case
        return case.command

    def is_quick(self, row: Row) -> bool:
        """Whether the row's step is in the file, and one of training, which samples are of: others may be captured first."""
        case: TimmRow = row.case
        return case.step.train and not case.compiled and is_shipped(case.step)


FORMATS = (ImageModels(),)
