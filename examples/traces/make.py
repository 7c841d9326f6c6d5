"""Makes the traces of this folder: captures of the scripts in ``examples/train``, without a GPU, as on an A100.

    python examples/traces/make.py [--to FOLDER] [NAME ...]
    python examples/traces/make.py --studies      # those of the case studies that do not ship, into the folder "more"
    python examples/traces/make.py --times [NAME ...]   # the times alone, after a compute model changed; without PyTorch

Operators, tensors and memory are what PyTorch would do on that GPU; the times come from triosim's compute models, and each
trace says so. Needs PyTorch, torchvision and transformers. The same versions of them make the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from triosim import Operator, Trace, load_trace, save_trace
from triosim.capture.one_rank import capture_fake
from triosim.compute.pricing.prediction import with_predicted_times

TRAIN = Path(__file__).resolve().parents[1] / "train"

#: What is run for each trace that ships: one step of training, on one GPU.
SHIPPED = {
    "resnet50": "vision.py --model resnet50 --batch-size 128",
    "vgg11": "vision.py --model vgg11 --batch-size 128",
    "vgg13": "vision.py --model vgg13 --batch-size 128",
    "vgg19": "vision.py --model vgg19 --batch-size 128",
    "gpt2": "language.py --model gpt2 --batch-size 8 --sequence 1024",
    "bert": "language.py --model bert --batch-size 8 --sequence 512",
    "llama-1b": "language.py --model llama-1b --batch-size 4 --sequence 2048 --dtype bfloat16",
}

#: The rest of those that the case studies in ``examples/notebooks`` look at.
STUDIED = {
    name: f"vision.py --model {name} --batch-size 128"
    for name in (
        *("vgg16", "resnet18", "resnet34", "resnet101", "resnet152"),
        *("densenet121", "densenet161", "densenet169", "densenet201"),
    )
} | {"t5": "language.py --model t5 --batch-size 8 --sequence 512"}

COMMANDS = SHIPPED | STUDIED


def made(name: str) -> Trace:
    """Return the trace of a name: what its script does in one step on an A100."""
    script, *arguments = COMMANDS[name].split()
    with contextlib.redirect_stdout(io.StringIO()):
        trace = capture_fake(TRAIN / script, arguments, gpu="A100")
    library = "torchvision" if script == "vision.py" else "transformers"
    software = {**trace.software, library: version(library), "script": f"examples/train/{COMMANDS[name]}"}
    return in_nanoseconds(replace(trace, model=name, software=software))


def in_nanoseconds(trace: Trace) -> Trace:
    """Return a trace with its predicted times rounded."""
    return replace(trace, operators=tuple(rounded(operator) for operator in trace.operators))


def rounded(operator: Operator) -> Operator:
    """Return an operator with its predicted time in whole nanoseconds, which machines do not disagree about."""
    error = None if operator.relative_error is None else round(operator.relative_error, 4)
    return replace(operator, seconds=round(operator.seconds, 9), relative_error=error)


def path_of(name: str, folder: Path) -> Path:
    """Return where a trace is kept."""
    return folder / f"{name.replace('-', '_')}_a100_fake.json.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--studies", action="store_true", help="those of the case studies that are not there yet")
    parser.add_argument("--times", action="store_true", help="predict the times of those that are there again")
    parser.add_argument("--to", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    for name in options.names:
        if name not in COMMANDS:
            parser.error(f"there is no {name!r}; the traces are {', '.join(COMMANDS)}")
    here = Path(__file__).resolve().parent
    folder = options.to or (here / "more" if options.studies else here)
    folder.mkdir(exist_ok=True)
    names = options.names or (STUDIED if options.studies else SHIPPED)
    for name in names:
        path = path_of(name, folder)
        if options.studies and path.exists():
            continue
        trace = in_nanoseconds(with_predicted_times(load_trace(path))) if options.times else made(name)
        save_trace(trace, path)
        print(
            f"{path}: {len(trace.operators):,} operators, {trace.seconds * 1e3:.1f} ms, {path.stat().st_size:,} bytes"
        )


if __name__ == "__main__":
    main()
