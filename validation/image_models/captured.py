"""Steps of timm's models without a GPU: of models that were captured before, or captured now, which takes PyTorch and timm.

``programs.json.xz`` beside this module holds the programs of the models of ``image_models/timm.csv.gz``, so that a table of
them is predicted in minutes and without PyTorch. What is captured now is kept in the folder ``TRIOSIM_CAPTURES``, where it is
set; ``python -m validation.image_models.captured --pack`` adds what is there to the file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from triosim.errors import CaptureError
from triosim.trace import Trace
from validation.image_models.program import BATCH, Call, Program, TensorForm, frozen, program_of

_SHIPPED = Path(__file__).with_name("programs.json.xz")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a model of timm, but for its batch size."""

    model: str
    image_size: int
    train: bool
    channels_last: bool
    attention: str

    @property
    def name(self) -> str:
        """The step's name in the file of programs."""
        layout, phase = ("nhwc" if self.channels_last else "nchw"), ("train" if self.train else "infer")
        return f"{self.model} {self.image_size} {phase} {layout} {self.attention}"


def trace(step: Step, batch_size: int, gpu: str) -> Trace:
    """Return a step of a batch size on a GPU, without times.

    Raises ``CaptureError`` where it was not captured before and cannot be: without PyTorch or timm, or of an unknown model.
    """
    found, channels_last = _known(step)
    return found.trace(batch_size, gpu, step.model, channels_last=channels_last)


@lru_cache(maxsize=16)
def _known(step: Step) -> tuple[Program, bool]:
    """Return the program of a step, and whether its images are to keep their channels last."""
    kept = _kept(step)
    if kept is None:
        return captured(step), step.channels_last
    found = _shipped()[kept.name]
    return found if kept.train == step.train else found.inference(), step.channels_last


def is_shipped(step: Step) -> bool:
    """Whether a step can be predicted without PyTorch."""
    return _kept(step) is not None


def _kept(step: Step) -> Step | None:
    """Return the step in the file that stands for a step.

    Of most models, the step with channels first is that with channels last without that attribute, and is not stored.
    Inference is the forward pass of training; without attention, it does not matter how that is computed.
    """
    either = (step, replace(step, channels_last=True))
    training = () if step.train else tuple(replace(one, train=True, attention="products") for one in either)
    for one in (*either, *training):
        found = _shipped().get(one.name)
        if found is not None and (one.attention == step.attention or not found.attends):
            return one
    return None


def captured(step: Step) -> Program:
    """Return the program of a step, captured now or before in ``TRIOSIM_CAPTURES``."""
    folder = os.environ.get("TRIOSIM_CAPTURES")
    kept = Path(folder, f"{step.name}.json") if folder else None
    if kept is not None and kept.exists():
        return unpacked(kept.read_bytes())[step.name]
    found = _capture(step)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(packed({step.name: found}))
    return found


def _capture(step: Step) -> Program:
    from triosim.tracer import FakeDevice
    from triosim.tracer.steps import StepObservations

    observed = StepObservations(batch_size=BATCH)
    with FakeDevice("RTX-3090") as device:
        run = _function(step)
        if step.train:
            run()  # makes the optimizer's state
        device.step_begins(0, observed)
        run()
        device.step_ends(0, observed)
    return program_of(device.traces[0])


def _function(step: Step) -> Callable[[], object]:
    """Return a function that runs the step. Raises ``CaptureError`` for what timm cannot build."""
    try:
        from validation.image_models import timm_step

        model = timm_step.build(step.model, step.image_size, step.attention)
    except ImportError as error:
        what, fix = f"{error.name} is not installed", "pip install -c constraints.txt -e '.[validation]'"
        raise CaptureError(what, where=step.name, fix=fix) from None
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise CaptureError(str(error), where=step.name) from None
    size = step.image_size
    return timm_step.step_of(model, BATCH, size, train=step.train, channels_last=step.channels_last)


@cache
def _shipped() -> dict[str, Program]:
    return unpacked(lzma.decompress(_SHIPPED.read_bytes())) if _SHIPPED.exists() else {}


def packed(programs: Mapping[str, Program]) -> bytes:
    """Return programs by name as the JSON of one file, in which equal tensors and calls stand once."""
    tensors: dict[TensorForm, int] = {}
    calls: dict[Call, int] = {}
    plain = {}
    for name, program in sorted(programs.items()):
        rows = [calls.setdefault(call, len(calls)) for call in program.calls]
        plain[name] = [rows, _differences(program.forward)]
    forms = [
        [call.name, call.phase, dict(call.attributes), *(_rows(tensors, one) for one in (call.inputs, call.outputs))]
        for call in calls
    ]
    content = {"tensors": list(tensors), "calls": forms, "programs": plain}
    return json.dumps(content, separators=(",", ":")).encode()


def unpacked(text: bytes) -> dict[str, Program]:
    """Return the programs by name."""
    content = json.loads(text)
    tensors = [TensorForm(tuple(shape), *others) for shape, *others in content["tensors"]]
    calls = []
    for name, phase, attributes, *sides in content["calls"]:
        inputs, outputs = (tuple(tensors[row] for row in side) for side in sides)
        calls.append(Call(name, phase, frozen(attributes), inputs, outputs))
    return {
        name: Program(tuple(calls[row] for row in rows), tuple(_links(differences)))
        for name, (rows, differences) in content["programs"].items()
    }


def _rows(tensors: dict[TensorForm, int], side: Iterable[TensorForm]) -> list[int]:
    return [tensors.setdefault(one, len(tensors)) for one in side]


def _differences(links: Iterable[int | None]) -> list[int | None]:
    """Return each link as the difference to the one before: a backward pass steps back through the forward pass."""
    last = 0
    found: list[int | None] = []
    for link in links:
        found.append(None if link is None else link - last)
        last = last if link is None else link
    return found


def _links(differences: Iterable[int | None]) -> Iterator[int | None]:
    last = 0
    for one in differences:
        last += one or 0
        yield None if one is None else last


def main(given: Sequence[str] | None = None) -> int:
    """Capture models, and write the file of programs."""
    parser = argparse.ArgumentParser(prog="python -m validation.image_models.captured", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL=SIZE", help="capture the training of these: resnet50=224")
    parser.add_argument("--pack", action="store_true", help="write the file of programs from all that was captured")
    options = parser.parse_args(given)
    for name, _, size in (one.partition("=") for one in options.models):
        captured(Step(name, int(size), True, True, "products"))
    if options.pack:
        programs = dict(_shipped())
        for path in sorted(Path(os.environ["TRIOSIM_CAPTURES"]).glob("*.json")):
            programs.update(unpacked(path.read_bytes()))
        _SHIPPED.write_bytes(lzma.compress(packed(programs), preset=9))
    return 0


if __name__ == "__main__":
    sys.exit(main())
