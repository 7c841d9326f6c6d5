"""The same script, captured on the CPU and without a GPU, has the same matrix products and convolutions, of the same shapes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from triosim.capture.many_ranks import capture_ranks  # noqa: E402
from triosim.capture.one_rank import capture_fake  # noqa: E402
from triosim.trace import Trace  # noqa: E402
from triosim.tracer import capture_script  # noqa: E402
from triosim.tracer.device.script_patches import complete_torchvision  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402
from triosim.tracer.profiler.step_profiler import PROFILER_FILE  # noqa: E402
from triosim.tracer.script_runner import run_script  # noqa: E402

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "train"
PRODUCTS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
)
IMAGES = ["--batch-size", "2", "--image-size", "32", "--classes", "10", "--steps", "3"]
LLAMA = ["--model", "tiny", "--sequence", "16", "--float32", "--steps", "3"]
WORDS = ["--batch-size", "2", "--sequence", "16", "--layers", "2", "--hidden-size", "192", "--vocabulary", "100"]

#: Products or convolutions of a step: the name of each, and the shapes that it is given.
Calls = list[tuple[str, list[tuple[int, ...]]]]


def on_the_cpu(script: Path, arguments: list[str], folder: Path) -> Calls:
    """What the profiler saw; a product that PyTorch makes of another one is not counted again."""
    capture_script(script, arguments, skip=0, warmup=0, steps=0, directory=folder)
    events = json.loads((folder / PROFILER_FILE).read_text(encoding="utf-8"))["traceEvents"]
    products = [event for event in events if event.get("name") in PRODUCTS and event.get("cat") == "cpu_op"]
    found: Calls = []
    over = 0.0
    for event in sorted(products, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= over:
            over = event["ts"] + event["dur"]
            found.append((event["name"], [tuple(shape) for shape in event["args"]["Input Dims"] if shape]))
    return found


def without_a_gpu(script: Path, arguments: list[str]) -> Calls:
    return products(capture_fake(script, arguments, skip=0))


def without_a_gpu_alone(script: Path, arguments: list[str]) -> Calls:
    """As the one rank of a world, in this process, where attention can be told to be made of products."""
    with FakeDevice("H100-SXM", world=1) as device:
        run_script(script, arguments, device, skip=0, steps=1)
    return products(device.traces[0])


def products(trace: Trace) -> Calls:
    return [(one.name, [tensor.shape for tensor in one.inputs]) for one in trace.operators if one.name in PRODUCTS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "model", "arguments"),
    [
        *(("vision.py", model, IMAGES) for model in ("resnet50", "vgg13", "densenet121", "vit_b_32")),
        *(("language.py", model, [*WORDS, "--steps", "3"]) for model in ("gpt2", "bert", "t5", "llama-1b")),
        ("language.py", "gpt2", [*WORDS, "--steps", "3", "--checkpoint", "--accumulate", "2", "--amp", "bfloat16"]),
    ],
)
def test_products_and_convolutions_are_the_same_in_number_order_and_shape(
    script: str, model: str, arguments: list[str], tmp_path: Path, capsys: Any
) -> None:
    """Attention is made of products in both: which kernel would fuse them is up to the device."""
    complete_torchvision()
    pytest.importorskip("torchvision" if script == "vision.py" else "transformers")
    with sdpa_kernel(SDPBackend.MATH):
        real = on_the_cpu(SCRIPTS / script, ["--model", model, *arguments], tmp_path)
        fake = without_a_gpu(SCRIPTS / script, ["--model", model, *arguments])
    assert len(real) > 20
    assert fake == real


@pytest.fixture
def only_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as the one rank of a world, which is left when the script is stopped."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}
    for name, value in where.items():
        monkeypatch.setenv(name, str(value))
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_a_rank_of_ddp_has_the_same_products_too(model: str, only_rank: None, tmp_path: Path) -> None:
    """One rank is all that one process can be; with more of them its products are the same."""
    complete_torchvision()
    pytest.importorskip("transformers")
    arguments = ["--model", model, *WORDS, "--steps", "3"]
    with sdpa_kernel(SDPBackend.MATH):
        fake = without_a_gpu_alone(SCRIPTS / "ddp.py", arguments)
        real = on_the_cpu(SCRIPTS / "ddp.py", arguments, tmp_path)
    assert len(real) > 20
    assert fake == real


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments"), [("fsdp2.py", []), ("tensor_parallel.py", []), ("tensor_parallel.py", ["--loss-parallel"])]
)
def test_a_rank_of_distributed_tensors_has_the_same_products_too(
    script: str, arguments: list[str], only_rank: None, tmp_path: Path
) -> None:
    """Without a GPU it is a process of its own: DTensor keeps what it made for a kind of device. Its attention is of
    products as it is, for in single precision heads that share keys have no other kernel.
    """
    with sdpa_kernel(SDPBackend.MATH):
        real = on_the_cpu(SCRIPTS / script, [*LLAMA, *arguments], tmp_path)
    fake = products(capture_ranks(SCRIPTS / script, [*LLAMA, *arguments], world=1).streams.traces[0])
    assert len(real) > 20
    assert fake == real


def test_selective_checkpoints_compute_less_again_than_full_ones() -> None:
    """A layer has seven products. Nobody reads the last one's result again; selective ones keep every second, the first too."""
    counts = {}
    for kind in ("none", "full", "selective"):
        again = [] if kind == "none" else ["--checkpoint", kind]
        found = without_a_gpu_alone(SCRIPTS / "fsdp2.py", [*LLAMA, *again])
        counts[kind] = sum(name == "aten::mm" for name, _ in found)
    layers = 4
    assert counts["full"] - counts["none"] == 6 * layers
    assert counts["selective"] - counts["none"] == 3 * layers
