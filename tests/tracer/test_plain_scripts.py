"""What plain PyTorch scripts do beside a training step works without a GPU as it does with one."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

from collections.abc import Iterator  # noqa: E402
from typing import Any  # noqa: E402

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from triosim.errors import CaptureError  # noqa: E402
from triosim.tracer.fake_device import FakeDevice, fake_capture  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning")
LARGE = 1024  # a weight of so many rows and columns is fake on the host too


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with FakeDevice("H100-SXM") as entered:
        yield entered


def train(model: nn.Module, width: int = LARGE, **options: Any) -> None:
    optimizer = torch.optim.Adam(model.parameters(), **options)
    for _ in range(2):
        model(torch.ones(4, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("width", [8, LARGE])
def test_data_of_another_device_is_assigned_in_place(device: FakeDevice, width: int) -> None:
    model = nn.Linear(width, width)
    weight = model.weight
    for parameter in model.parameters():
        parameter.data = parameter.data.cuda()
    assert model.weight is weight
    assert weight.is_cuda
    assert isinstance(weight, nn.Parameter)
    assert weight.requires_grad
    train(model, width)


def test_a_model_of_copied_layers_moves_to_the_gpu(device: FakeDevice) -> None:
    """Weights of 512 x 1,536 are fake on the host too."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, batch_first=True), 2).cuda()
    assert all(parameter.is_cuda for parameter in model.parameters())


@pytest.mark.parametrize("width", [8, LARGE])
def test_fsdp2_moves_a_model_that_lives_on_the_host(width: int) -> None:
    """Each of four ranks holds a quarter of the rows."""
    with FakeDevice("H100-SXM", world=4, rank=1):
        dist.init_process_group("nccl")
        model = fully_shard(nn.Linear(width, width))
        train(model, width)
        assert model.weight.to_local().shape == (width // 4, width)
        assert model.weight.to_local().is_cuda


def test_a_script_that_spawns_its_ranks_runs_its_own_one() -> None:
    ran = []

    def worker(index: int, suffix: str) -> None:
        dist.init_process_group("nccl", rank=index, world_size=4)
        ran.append(f"{index}{suffix}")

    with FakeDevice("H100-SXM", world=4, rank=2):
        mp.spawn(worker, args=("!",), nprocs=torch.cuda.device_count())
    assert ran == ["2!"]


def test_more_ranks_than_are_captured_are_an_error(device: FakeDevice) -> None:
    with pytest.raises(CaptureError, match=r"starts 4 ranks on a machine, where 1 are captured.*--world 4"):
        mp.spawn(print, nprocs=4)


@pytest.mark.parametrize("host", [True, False])
def test_data_parallel_on_one_gpu_computes_what_its_module_does(device: FakeDevice, host: bool) -> None:
    model = nn.DataParallel(nn.Linear(8, 2)).cuda()
    result = model(torch.ones(4, 8, device="cpu" if host else "cuda"))
    assert result.shape == (4, 2)
    assert result.is_cuda


def test_values_are_read_in_inference_mode(device: FakeDevice) -> None:
    with torch.inference_mode():
        scores = nn.Linear(8, 3).cuda()(torch.ones(4, 8, device="cuda"))
        assert (scores.argmax(1) == torch.ones(4, device="cuda")).sum().item() is not None
        assert torch.ones(4, device="cuda").sum().item() == 4
    names = {operator.name for operator in device.recorder.step.operators}
    assert "aten::addmm" in names
    assert "aten::linear" not in names


class Batch:
    """A batch as an object: neither a tensor nor a container."""

    def __init__(self, data: Any) -> None:
        self.parts = {"nodes": data}


class OfObjects(nn.Linear):
    """A model that is called with an object, or with nothing."""

    def forward(self, batch: Any = None) -> Any:  # type: ignore[override]
        return super().forward(self.weight if batch is None else batch.parts["nodes"])


@pytest.mark.parametrize(("batch", "samples"), [(12, 12), (None, 1)])
def test_the_batch_of_a_step_may_be_an_object_or_nothing(batch: int | None, samples: int) -> None:
    with fake_capture("H100-SXM") as captured:
        model = OfObjects(8, 8).cuda()
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            model(*([] if batch is None else [Batch(torch.ones(batch, 8, device="cuda"))])).sum().backward()
            optimizer.step()
    assert captured.trace.batch_size == samples


def test_operators_with_a_decomposition_in_python_run_in_inference_mode(device: FakeDevice) -> None:
    with torch.inference_mode():
        image = torch.ones(1, 3, 8, 8, device="cuda")
        for mode in ("nearest", "nearest-exact", "bilinear"):
            assert nn.functional.interpolate(image, scale_factor=2, mode=mode).shape == (1, 3, 16, 16)
    names = [operator.name for operator in device.recorder.step.operators]
    assert names[-3:] == ["aten::upsample_nearest2d", "aten::_upsample_nearest_exact2d", "aten::upsample_bilinear2d"]


def test_pytorch_logs_nothing_for_an_error_of_the_script(device: FakeDevice, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError):
        torch.ones(2, 3, device="cuda").add_(torch.ones(2, 4, device="cuda"))
    assert not caplog.records


def test_a_log_that_shows_information_has_no_line_of_the_compilers_end(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("torch._dynamo")
    before = logger.level
    try:
        with FakeDevice("H100-SXM"):
            logger.setLevel(logging.INFO)
        assert not [record for record in caplog.records if record.name.startswith("torch._dynamo")]
    finally:
        logger.setLevel(before)


def test_an_optimizer_that_a_graph_could_capture_counts_its_steps_on_the_gpu(device: FakeDevice) -> None:
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    for _ in range(3):
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    assert [state["step"].item() for state in optimizer.state.values()] == [3, 3]


def test_anomaly_detection_finds_none(device: FakeDevice) -> None:
    layer = nn.Linear(8, 8).cuda()
    with torch.autograd.detect_anomaly():
        layer(torch.ones(4, 8, device="cuda")).sum().backward()
    assert layer.weight.grad is not None


def test_actions_are_drawn_from_a_policy_and_words_from_a_model(device: FakeDevice) -> None:
    policy = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1)).cuda()
    drawn = torch.distributions.Categorical(policy(torch.rand(1, 4, device="cuda")))
    action = drawn.sample()
    (-drawn.log_prob(action) * action.item()).sum().backward()
    words = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    for _ in range(3):
        scores = torch.rand(1, 50, device="cuda")
        scores[scores < scores.topk(5).values[:, [-1]]] = -float("inf")
        words = torch.cat((words, torch.multinomial(scores.softmax(-1), 1)), 1)
    assert words[0].tolist() == [0, 1, 1, 1]


def test_a_gradient_of_a_gradient_is_a_penalty(device: FakeDevice) -> None:
    critic = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1)).cuda()
    data = torch.rand(4, 8, device="cuda", requires_grad=True)
    (slope,) = torch.autograd.grad(critic(data).sum(), data, create_graph=True)
    (slope.norm(2, dim=1) - 1).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(critic.parameters(), 1.0, error_if_nonfinite=True)
    assert (slope.shape, norm.shape) == (data.shape, ())


def test_an_evaluation_counts_its_samples_beside_what_is_right(device: FakeDevice) -> None:
    """Three batches of 16, of which no answer is known: each is read as class 1."""
    model, counts, ones = nn.Linear(8, 4).cuda(), torch.zeros(2, device="cuda"), 0
    for _ in range(3):
        answers, labels = model(torch.rand(16, 8, device="cuda")).argmax(1), torch.randint(4, (16,), device="cuda")
        counts[0] += (answers == labels).sum()
        counts[1] += len(answers)
        ones += labels.tolist().count(1)
    assert counts.tolist() == [ones, 48]


def test_a_scaler_keeps_its_scale_and_a_plateau_lowers_the_learning_rate(device: FakeDevice) -> None:
    model, scaler = nn.Linear(8, 1).cuda(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(2):
        with torch.autocast("cuda", torch.float16):
            loss = model(torch.rand(4, 8, device="cuda")).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step(loss)
    assert scaler.get_scale() == 65536
    assert schedule.get_last_lr() == [pytest.approx(0.01)]
