"""A training step on a GPU that is not there is the step that PyTorch would run, to the shape and to the byte."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Iterator  # noqa: E402
from itertools import pairwise  # noqa: E402
from typing import Any  # noqa: E402

from fake_models import BATCH, CLASSES, NETWORKS, convolutional, language, train  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from triosim.errors import CaptureError  # noqa: E402
from triosim.trace import Storage, Trace  # noqa: E402
from triosim.tracer.fake_device import fake_capture  # noqa: E402

PRODUCTS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
)


def captured(name: str, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> Trace:
    with fake_capture("H100-SXM") as capture:
        made = NETWORKS[name]("cuda")
        train(made, optimizer(made[0].parameters(), lr=1e-3, **options))
    return capture.trace


def nbytes(trace: Trace, category: str) -> int:
    """Bytes of the storages of a category that are there when the step is over."""
    return sum(one.nbytes for one in trace.storages if one.category == category and one.died is None)


def peak(trace: Trace) -> int:
    """The most bytes at once, each storage a multiple of 512 as the caching allocator has it."""
    changes = [(one.born, -(-one.nbytes // 512) * 512) for one in trace.storages]
    changes += [(one.died, -(-one.nbytes // 512) * 512 * -1) for one in trace.storages if one.died is not None]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


class Products(TorchDispatchMode):
    """Matrix products and convolutions with their shapes, as PyTorch calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function._schema.name in PRODUCTS:
            shapes = [tuple(one.shape) for one in args if isinstance(one, torch.Tensor)]
            self.calls.append((function._schema.name, shapes))
        return result


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_products_and_convolutions_are_those_of_the_same_step_on_the_cpu(name: str) -> None:
    made = NETWORKS[name]("cpu")
    optimizer = torch.optim.AdamW(made[0].parameters())
    train(made, optimizer, steps=1)
    with Products() as on_cpu:
        train(made, optimizer, steps=1)
    trace = captured(name)
    found = [(one.name, [t.shape for t in one.inputs]) for one in trace.operators if one.name in PRODUCTS]
    assert len(found) >= 9
    assert found == on_cpu.calls


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_gradients_and_states_have_pytorchs_bytes(name: str) -> None:
    model, loss = made = NETWORKS[name]("cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    train(made, optimizer, steps=1)
    loss()  # no gradient is lost by it
    trace = captured(name)
    parameters = list(model.parameters())
    assert nbytes(trace, "parameter") == sum(one.nbytes for one in parameters)
    assert nbytes(trace, "gradient") == sum(one.grad.nbytes for one in parameters if one.grad is not None)
    states = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    assert nbytes(trace, "optimizer_state") == sum(one.nbytes for one in states)
    assert nbytes(trace, "buffer") == sum(one.nbytes for one in model.buffers())
    assert sum(one.nbytes for one in trace.parameters.values()) == sum(one.nbytes for one in parameters)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["convolutional", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"foreach": False}, {"fused": True}])
def test_the_peak_is_that_of_pytorchs_own_tracker(name: str, options: dict[str, bool]) -> None:
    from torch.distributed._tools.mem_tracker import MemTracker

    with fake_capture("H100-SXM") as capture:
        made = NETWORKS[name]("cuda")
        optimizer = torch.optim.AdamW(made[0].parameters(), **options)
        train(made, optimizer, steps=1)
        tracker = MemTracker()
        tracker.track_external(made[0], optimizer)
        with tracker:
            train(made, optimizer, steps=1)
        snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cuda:0")]
        assert torch.cuda.max_memory_allocated() == peak(capture.trace)
    assert peak(capture.trace) == snapshot["Total"]


@pytest.mark.parametrize("name", ["convolutional", "llama"])
def test_a_storage_is_there_when_an_operator_uses_it(name: str) -> None:
    trace = captured(name)
    storages: dict[int, Storage] = {one.id: one for one in trace.storages}
    assert len(storages) == len(trace.storages)
    for position, operator in enumerate(trace.operators):
        for tensor in (*operator.inputs, *operator.outputs):
            storage = storages[tensor.storage]
            assert storage.operator <= position
            assert storage.last_operator is None or storage.last_operator >= position
            assert tensor.category == storage.category
    assert all(one.died is None or one.born < one.died for one in trace.storages)
    moments = [moment for one in trace.storages for moment in (one.born, one.died) if moment is not None]
    assert len(set(moments)) == len(moments)


def test_forward_and_backward_are_joined_and_know_their_layer() -> None:
    trace = captured("convolutional")
    by_id = {one.id: one for one in trace.operators}
    for operator in trace.operators:
        if operator.name == "aten::convolution_backward":
            assert operator.forward is not None
            forward = by_id[operator.forward]
            assert (forward.name, forward.layer) == ("aten::convolution", operator.layer)
            assert [one.shape for one in operator.inputs[1:3]] == [one.shape for one in forward.inputs[:2]]
    layers = [one.layer for one in trace.operators if one.name.startswith("aten::convolution")]
    assert layers == ["0", "2.body.0", "3", "3", "2.body.0", "0"]
    assert {one.layer for one in trace.operators if one.phase == "optimizer"} == {"optimizer"}
    assert [one.phase for one in trace.operators] == sorted(
        (one.phase for one in trace.operators), key=["forward", "backward", "optimizer"].index
    )


def test_gradients_and_states_know_their_parameter() -> None:
    trace = captured("convolutional")
    tensors = trace.tensors
    for category, each in (("gradient", 1), ("optimizer_state", 2)):
        owned = [t for t in tensors.values() if t.category == category and t.parameter is not None]
        storages = {t.storage: t for t in owned if t.shape == tensors[t.parameter].shape}
        owners = [tensors[t.parameter].storage for t in storages.values() if t.parameter is not None]
        assert sorted(owners) == sorted([t.storage for t in trace.parameters.values()] * each)


def test_attributes_say_what_shapes_do_not() -> None:
    trace = captured("convolutional")
    first, second, third = (one.attributes for one in trace.operators if one.name == "aten::convolution")
    assert (first["stride"], first["padding"], first["groups"], first["transposed"]) == ([2, 2], [1, 1], 1, False)
    assert (second["stride"], third["groups"]) == ([1, 1], 2)


def test_what_is_fed_and_what_comes_out_is_known() -> None:
    trace = captured("convolutional")
    fed = {(t.shape, t.dtype) for t in trace.tensors.values() if t.category == "input"}
    assert fed == {((BATCH, 3, 16, 16), "float32"), ((BATCH,), "int64")}
    out = {t.shape for t in trace.tensors.values() if t.category == "output"}
    assert out == {(BATCH, CLASSES), ()}
    assert (trace.model, trace.gpu, trace.batch_size) == ("Sequential", "H100-SXM", BATCH)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_leaves_out_is_computed_again_in_the_backward_pass(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    with fake_capture("H100-SXM") as capture:
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)).cuda()
        optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
        for _ in range(2):
            data = torch.randn(BATCH, 8, device="cuda", requires_grad=True)
            for block in blocks:
                data = checkpoint(block, data, use_reentrant=reentrant)
            data.sum().backward()
            optimizer.step()
    products = [one for one in capture.trace.operators if one.name == "aten::addmm"]
    phases = [one.phase for one in products]
    # The other one needs its last product only where the output itself is asked for.
    again = 6 if reentrant else 3
    assert phases[:6] == ["forward"] * 6
    assert phases.count("backward") in (again, 6)
    assert {one.category for one in products[-1].outputs} == {"activation"}
    assert [one.layer for one in products][:2] == ["0", "2"]
    assert capture.trace.batch_size == BATCH


def test_a_step_has_as_many_passes_as_the_script_gives_it() -> None:
    with fake_capture("H100-SXM") as capture:
        model, loss = convolutional("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(3):
                loss().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    operators = capture.trace.operators
    assert [one.phase for one in operators if one.name == "aten::convolution"] == ["forward"] * 9
    assert capture.trace.batch_size == 3 * BATCH
    assert {one.phase for one in operators if "norm" in one.name and "batch" not in one.name} == {"optimizer"}
    runs = [first.phase for first, second in pairwise(operators) if first.phase != second.phase]
    assert [*runs, operators[-1].phase] == ["forward", "backward"] * 3 + ["optimizer"]


def test_mixed_precision_is_that_of_a_gpu() -> None:
    with fake_capture("H100-SXM") as capture:
        model, loss = convolutional("cuda")
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                found = loss()
            scaler.scale(found).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    convolutions = [one for one in capture.trace.operators if one.name == "aten::convolution"]
    assert {t.dtype for one in convolutions for t in one.inputs} == {"float16"}
    assert capture.notes == []  # the scaler's own question, whether a gradient is infinite, has a known answer
    scalers = [one for one in capture.trace.operators if "_amp_" in one.name]
    assert {one.phase for one in scalers} == {"optimizer"}


@pytest.mark.parametrize(
    ("half", "masked", "kernel"), [(True, False, "flash"), (True, True, "efficient"), (False, False, "efficient")]
)
def test_attention_is_the_kernel_that_a_gpu_would_choose(half: bool, masked: bool, kernel: str) -> None:
    with fake_capture("H100-SXM") as capture:
        layer = nn.Linear(60, 60).cuda().to(torch.bfloat16 if half else torch.float32)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        mask = torch.ones(12, 12, dtype=torch.bool, device="cuda").tril() if masked else None
        for _ in range(2):
            data = layer(torch.randn(2, 3, 12, 60, device="cuda", dtype=layer.weight.dtype))
            found = nn.functional.scaled_dot_product_attention(data, data, data, attn_mask=mask)
            assert found.shape == (2, 3, 12, 60)
            found.sum().backward()
            optimizer.step()
    names = [one.name for one in capture.trace.operators if "attention" in one.name]
    name = f"aten::_scaled_dot_product_{kernel}_attention"
    assert names == (
        [name, f"{name}_backward"] if not (half and masked) else []
    )  # 60 halves are no multiple of 16 bytes


def kernel_of(gpu: str, *shape: int, dtype: Any, heads: int | None = None, **options: Any) -> str:
    """The kernel that attention takes on a GPU, forward; with ``heads`` the keys have fewer, in groups."""
    with fake_capture(gpu, batch_size=1) as capture:
        weight = nn.Parameter(torch.ones(1, device="cuda", dtype=dtype))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        keys = torch.randn(shape[0], heads or shape[1], *shape[2:], device="cuda", dtype=dtype)
        for _ in range(2):
            data = torch.randn(*shape, device="cuda", dtype=dtype) * weight
            nn.functional.scaled_dot_product_attention(data, keys, keys, enable_gqa=heads is not None, **options)
            optimizer.step()
    names = [one.name.partition("::")[2] for one in capture.trace.operators]
    fused = [name for name in names if "attention" in name]
    assert len(fused) == (0 if "bmm" in names else 1)
    return fused[0].removeprefix("_scaled_dot_product_").removesuffix("_attention") if fused else "products"


@pytest.mark.parametrize(
    ("gpu", "dtype", "features", "heads", "kernel"),
    [
        ("A100", torch.float16, 64, None, "flash"),
        ("V100", torch.float16, 64, None, "efficient"),  # FlashAttention needs Ampere
        ("V100", torch.bfloat16, 64, None, "products"),
        ("V100", torch.float32, 62, None, "efficient"),
        ("H100", torch.float32, 62, None, "products"),  # no multiple of 16 bytes, which tensor cores load
        ("H100", torch.bfloat16, 64, 2, "flash"),
        ("H100", torch.float32, 64, 2, "products"),  # groups of heads in single precision
        ("H100", torch.bfloat16, 512, None, "efficient"),
    ],
)
def test_not_each_gpu_has_each_attention_kernel(
    gpu: str, dtype: Any, features: int, heads: int | None, kernel: str
) -> None:
    assert kernel_of(gpu, 1, 4, 16, features, dtype=dtype, heads=heads) == kernel


def test_an_attention_kernel_that_is_asked_for_and_cannot_be_is_an_error_as_on_a_gpu() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        kernel_of("H100", 1, 4, 16, 64, dtype=torch.float32)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert kernel_of("H100", 1, 4, 16, 64, dtype=torch.bfloat16) == "flash"
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert kernel_of("H100", 1, 4, 16, 64, dtype=torch.bfloat16) == "efficient"


def test_flex_attention_is_one_operator_and_its_gradient_another() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    with fake_capture("H100-SXM") as capture:
        layer = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        compiled = torch.compile(flex_attention)
        for _ in range(2):
            data = layer(torch.randn(2, 3, 128, 64, device="cuda"))
            compiled(data, data, data, score_mod=lambda score, b, h, i, j: score + i - j).sum().backward()
            optimizer.step()
    found = [one for one in capture.trace.operators if "attention" in one.name]
    assert [one.name for one in found] == ["flex_attention", "flex_attention_backward"]
    assert found[0].outputs[0].shape == (2, 3, 128, 64)
    assert not [one for one in capture.trace.operators if one.outputs and one.outputs[0].shape == (2, 3, 128, 128)]


def test_streams_events_and_waits_are_marked() -> None:
    with fake_capture("H100-SXM") as capture:
        model, _ = convolutional("cuda")
        optimizer, side = torch.optim.SGD(model.parameters(), lr=0.1), torch.cuda.Stream()
        for _ in range(2):
            with torch.cuda.stream(side):
                data = torch.randn(BATCH, 3, 16, 16, device="cuda")
            torch.cuda.current_stream().wait_stream(side)
            model(data).sum().backward()
            optimizer.step()
            torch.cuda.synchronize()
    trace = capture.trace
    assert [one.stream for one in trace.operators if one.name == "aten::randn"] == ["stream 1"]
    assert {one.stream for one in trace.operators if one.name != "aten::randn"} == {"compute"}
    synchronize, record, wait = trace.marks
    assert (synchronize.kind, synchronize.stream, synchronize.number) == ("synchronize", None, None)
    assert synchronize.source.startswith("test_fake_device.py:")
    assert (record.kind, record.stream, wait.kind, wait.stream) == ("record", "stream 1", "wait", "compute")
    assert record.number == wait.number
    assert trace.operators[record.position - 1].name == "aten::randn"


def test_one_capture_at_a_time() -> None:
    with fake_capture("H100-SXM"), pytest.raises(CaptureError, match="running already"), fake_capture("H100-SXM"):
        pass


def test_a_capture_without_a_step_says_so() -> None:
    with fake_capture("H100-SXM") as capture:
        train(made := convolutional("cuda"), torch.optim.SGD(made[0].parameters(), lr=0.1), steps=1)
    with pytest.raises(CaptureError, match="1 of 2 steps"):
        _ = capture.trace


def test_a_step_on_the_host_is_none_on_the_device() -> None:
    with pytest.raises(CaptureError, match="nothing on the device"), fake_capture("H100-SXM", skip=0):
        train(made := convolutional("cpu"), torch.optim.SGD(made[0].parameters(), lr=0.1), steps=1)


def parts(trace: Trace) -> Iterator[object]:
    for one in trace.operators:
        yield one.name, one.phase, one.layer, one.forward, one.inputs, one.outputs
    yield trace.storages


def test_a_capture_is_the_same_each_time() -> None:
    first, second = (list(parts(captured("gpt2"))) for _ in range(2))
    assert first == second


def test_a_language_models_fused_attention_is_captured() -> None:
    with fake_capture("H100-SXM") as capture:
        made = language("llama", "cuda", "sdpa")
        made[0].to(torch.bfloat16)
        train(made, torch.optim.AdamW(made[0].parameters()))
    names = [one.name for one in capture.trace.operators if "attention" in one.name]
    assert (
        names
        == ["aten::_scaled_dot_product_flash_attention"] * 2
        + ["aten::_scaled_dot_product_flash_attention_backward"] * 2
    )
