"""A script that compiles has the kernels of a compiler on the fake device: fewer operators, and the products as written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import importlib  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from triosim.compute.pricing.prediction import with_predicted_times  # noqa: E402
from triosim.errors import CaptureWarning  # noqa: E402
from triosim.operators.features import base_name, is_free  # noqa: E402
from triosim.results.metrics import model_flops  # noqa: E402
from triosim.trace import Operator, Trace  # noqa: E402
from triosim.tracer import fake_capture  # noqa: E402

ROWS, WIDTH = 512, 256
SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "train"


class Block(nn.Module):
    """A norm, and two products with GELU between, added to what came in."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """Two blocks, each recomputed in the backward pass if asked for."""

    def __init__(self, *, recompute: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(dropout), Block(dropout)])
        self.recompute = recompute

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x


def captured(
    model: nn.Module,
    compiled: Callable[[nn.Module], Any] = torch.compile,
    optimizer: Callable[[Any], Any] = lambda optimizer: optimizer.step,
) -> Trace:
    with fake_capture("H100-SXM") as capture:
        model = model.cuda().bfloat16()
        called = compiled(model)
        called = model if called is None else called
        adam = torch.optim.Adam(model.parameters())
        step = optimizer(adam)
        for _ in range(2):
            data = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
            called(data).float().mean().backward()
            step()
            adam.zero_grad()
    assert not capture.notes
    return with_predicted_times(capture.trace)


def launches(trace: Trace, phase: str, layer: str = "layers.1") -> list[Operator]:
    return [
        one
        for one in trace.operators
        if one.phase == phase and not is_free(one) and (one.layer + ".").startswith(f"{layer}.")
    ]


def products(trace: Trace) -> list[tuple[tuple[int, ...], ...]]:
    return sorted(
        tuple(tensor.shape for tensor in one.outputs)
        for one in trace.operators
        if base_name(one.name) in ("mm", "addmm")
    )


def test_a_block_of_a_compiled_model_is_two_products_and_two_kernels_forward() -> None:
    """The norm (with the addition before it), a product, GELU, the other product; the last addition is the next norm's."""
    trace = captured(Net())
    names = [base_name(one.name) for one in launches(trace, "forward")]
    assert names == ["chain", "addmm", "chain", "addmm", "add"]
    gelu = launches(trace, "forward")[2]
    assert [tensor.shape for tensor in gelu.inputs] == [(ROWS, 4 * WIDTH)]
    assert [tensor.shape for tensor in gelu.outputs] == [(ROWS, 4 * WIDTH)]
    assert "erf" in gelu.attributes["operators"]


def test_compiled_products_are_those_of_the_uncompiled_step() -> None:
    eager, compiled = captured(Net(), lambda model: model), captured(Net())
    assert products(compiled) == products(eager)
    assert sum(one.seconds for one in compiled.operators) < sum(one.seconds for one in eager.operators)
    assert eager.batch_size == compiled.batch_size == ROWS


def in_blocks(model: Any) -> None:
    for number, layer in enumerate(model.layers):
        model.layers[number] = torch.compile(layer, fullgraph=True)


def in_place(model: Any) -> None:
    for layer in model.layers:
        layer.compile()


@pytest.mark.parametrize("compiled", [in_blocks, in_place])
def test_blocks_that_are_compiled_each_keep_their_places(compiled: Callable[[Any], None]) -> None:
    trace = captured(Net(), compiled)
    for layer in ("layers.0", "layers.1"):
        names = [base_name(one.name) for one in launches(trace, "forward", layer)]
        assert names == ["chain", "addmm", "chain", "addmm", "add"]
        assert len(launches(trace, "backward", layer)) < 16


def test_a_backend_that_fuses_nothing_records_operator_by_operator() -> None:
    trace = captured(Net(), lambda model: torch.compile(model, backend="aot_eager"))
    assert not [one for one in trace.operators if one.name.startswith("fused::")]
    assert products(trace) == products(captured(Net(), lambda model: model))


def test_a_compiled_optimizer_is_one_kernel() -> None:
    """It reads gradients, parameters and both states of each, and writes all but the gradients."""
    trace = captured(Net(), optimizer=lambda adam: torch.compile(adam.step))
    (kernel,) = [one for one in trace.operators if one.phase == "optimizer" and not is_free(one)]
    bytes_of = sum(parameter.numel() * 2 for parameter in Net().parameters())
    written = sum(tensor.nbytes for tensor in kernel.outputs if tensor.numel > 1)
    assert written == 3 * bytes_of


def test_recomputed_blocks_run_their_forward_kernels_again() -> None:
    """Selected kernels of the second run are those of the first: its products are computed twice but for the last."""
    plain, again = captured(Net()), captured(Net(recompute=True))
    assert len(products(again)) > len(products(plain))
    assert [one.name for one in launches(again, "forward")] == [one.name for one in launches(plain, "forward")]


def test_random_numbers_of_dropout_are_drawn_inside_of_kernels() -> None:
    trace = captured(Net(dropout=0.1))
    assert not [one for one in trace.operators if "random" in one.name]
    assert any("inductor_random" in one.attributes.get("operators", ()) for one in trace.operators)


def test_each_shape_is_compiled_by_itself() -> None:
    with fake_capture("H100-SXM") as capture:
        model = Net().cuda()
        compiled = torch.compile(model, dynamic=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in (16, 48):
            compiled(torch.randn(rows, WIDTH, device="cuda")).mean().backward()
            optimizer.step()
    assert {one.outputs[0].shape[0] for one in launches(capture.trace, "forward")} == {48}


def test_what_cannot_be_compiled_runs_as_it_is_written() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of ideas")

    with fake_capture("H100-SXM") as capture, warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureWarning)
        model = Net().cuda()
        compiled = torch.compile(model, backend=broken)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            compiled(torch.randn(ROWS, WIDTH, device="cuda")).mean().backward()
            optimizer.step()
    (note,) = capture.notes
    assert "cannot be compiled without a GPU (RuntimeError: out of ideas): captured as it is written" in note
    assert not [one for one in capture.trace.operators if one.name.startswith("fused::")]


def test_a_compiled_function_with_the_model_inside_is_a_call_of_the_model() -> None:
    """No module is called: the batch is the function's argument, and 4 products are of the forward pass."""
    with fake_capture("H100-SXM") as capture:
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @torch.compile
        def loss_of(x: Any) -> Any:
            return model(x).square().mean()

        for _ in range(2):
            loss_of(torch.ones(ROWS, WIDTH, device="cuda")).backward()
            optimizer.step()
    trace = capture.trace
    assert (trace.batch_size, trace.model) == (ROWS, "Net")
    products = [one for one in trace.operators if base_name(one.name) in ("addmm", "mm")]
    assert [one.phase for one in products].count("forward") == 4
    assert {one.layer.partition(".")[0] for one in products} == {"layers"}


def test_a_model_that_ran_before_it_is_compiled_is_compiled_whole() -> None:
    """Functions that our hooks call are not compiled; they failed to be, with a note."""
    with fake_capture("H100-SXM") as capture:
        model = Net().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
        compiled = torch.compile(model)
        for _ in range(2):
            compiled(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
    assert not capture.notes
    assert any(one.name == "fused::chain" for one in capture.trace.operators)


@pytest.mark.parametrize("recompute", [None, "selective"])
def test_the_layers_of_the_example_compile_with_what_they_compute_again(
    recompute: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer of 7 products has 7 forward and 14 backward; a selective checkpoint keeps four of the 7, and attention."""
    monkeypatch.syspath_prepend(SCRIPTS)
    transformer = importlib.import_module("transformer")
    with fake_capture("H100-SXM") as capture:
        model = transformer.Transformer(transformer.Config(64, 3, 8, 4, 128, 256), recompute=recompute).cuda()
        transformer.compile_layers(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            tokens = torch.randint(0, 256, (2, 17), device="cuda")
            transformer.next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
            optimizer.step()
            optimizer.zero_grad()
    inner = [
        one for one in capture.trace.operators if one.layer.startswith("layers.1.") and base_name(one.name) == "mm"
    ]
    assert sum(one.phase == "forward" for one in inner) == 7
    assert sum(one.phase == "backward" for one in inner) == 14 + (3 if recompute else 0)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_flops_of_a_compiled_model_are_those_of_the_model(*, recompute: bool) -> None:
    """Each product counts three times, forward and for two gradients, and those that are computed again do not."""
    compiled, plain = captured(Net(recompute=recompute)), captured(Net(), compiled=lambda model: model)
    expected = 3 * 2 * 2 * 2 * ROWS * WIDTH * 4 * WIDTH
    for trace in (compiled, plain):
        assert sum(model_flops([(trace, 1.0)], None).values()) == expected
    backward = [one for one in compiled.operators if one.phase == "backward" and one.forward is not None]
    by_id = {one.id: one for one in compiled.operators}
    assert backward
    assert all(by_id[one.forward or 0].layer == one.layer for one in backward if base_name(one.name) == "mm")


def test_flex_attention_is_a_part_of_the_graph_that_it_is_called_in() -> None:
    """Nothing breaks the graph: the products before it and behind it are of one call, and no mask is in memory."""
    from torch._dynamo.utils import counters
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: Any, documents: Any) -> Any:
            def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
                return (i >= j) & (documents[i] == documents[j])

            blocks = create_block_mask(mask, None, None, 256, 256, device="cuda")
            y = self.first(x).view(1, 256, 2, 32).transpose(1, 2)
            y = flex_attention(y, y, y, block_mask=blocks).transpose(1, 2).reshape(1, 256, 64)
            return self.last(y).square()

    counters.clear()
    with fake_capture("H100-SXM") as capture:
        model = torch.compile(Attention().cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            documents = torch.zeros(256, dtype=torch.int64, device="cuda")
            model(torch.randn(1, 256, 64, device="cuda"), documents).sum().backward()
            optimizer.step()
        graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1
    assert all("which ones its mask skips" in note for note in capture.notes)
    names = [base_name(one.name) for one in capture.trace.operators]
    assert [names.count(one) for one in ("flex_attention", "flex_attention_backward")] == [1, 1]
    (backward,) = (one for one in capture.trace.operators if base_name(one.name) == "flex_attention_backward")
    assert [tensor.shape for tensor in backward.outputs[:3]] == 3 * [(1, 2, 256, 32)]


def test_layers_of_a_model_that_ddp_divides_into_buckets_are_the_models() -> None:
    """The compiler divides the graph by DDP's buckets, and puts each part into a module of its own."""
    with fake_capture("H100-SXM", world=2) as capture:
        torch.distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(torch.compile(Net().cuda()), bucket_cap_mb=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
    layers = {one.layer for one in capture.trace.operators if base_name(one.name) in ("mm", "addmm")}
    assert layers == {f"layers.{number}.{which}" for number in range(2) for which in ("up", "down")}
