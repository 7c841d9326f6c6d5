"""One rank of a distributed step, without GPUs: what it sends is what its algorithm must send, and nobody waits in vain."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

from collections import Counter  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any  # noqa: E402

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from triosim.errors import OptionError  # noqa: E402
from triosim.trace import Communication, Trace  # noqa: E402
from triosim.tracer.distributed.wrappers import ddp  # noqa: E402
from triosim.tracer.fake_device import FakeDevice, fake_capture  # noqa: E402

WIDTH, HIDDEN, BATCH, LAYERS = 16, 64, 8, 3
BYTES = 4  # of a float32

Step = Callable[[], None]


class Layer(nn.Module):
    """Two matrix products, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, data: torch.Tensor) -> Any:
        return data + self.down(self.up(data).relu())


LAYER_BYTES = BYTES * (2 * WIDTH * HIDDEN + HIDDEN + WIDTH)


def network() -> nn.Sequential:
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).cuda()


def captured(train: Callable[[], Step], world: int = 4, rank: int = 0) -> tuple[Trace, fake_capture]:
    """Capture the second step of what ``train`` prepares."""
    with fake_capture("H100-SXM", world=world, rank=rank) as capture:
        dist.init_process_group("nccl")
        step = train()
        for _ in range(2):
            step()
    return capture.trace, capture


def steps(model: nn.Module, **options: Any) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), **options)

    def step() -> None:
        optimizer.zero_grad()
        result = model(torch.randn(BATCH, WIDTH, device="cuda"))
        (result if isinstance(result, torch.Tensor) else result.to_local()).square().sum().backward()
        optimizer.step()

    return step


def communications(trace: Trace, kind: str | None = None) -> list[Communication]:
    found = [one.communication for one in trace.operators if one.communication is not None]
    return [one for one in found if kind in (None, one.kind)]


def waits(trace: Trace) -> Counter[int | None]:
    return Counter(mark.number for mark in trace.marks if mark.kind == "wait_work")


# ---- data parallelism -------------------------------------------------------------------------------------------


def test_a_state_dict_is_loaded_into_a_model_under_ddp() -> None:
    """PyTorch copies into the parameters, whose gradients DDP's reducer waits for."""

    def train() -> Step:
        model = DistributedDataParallel(network())
        step = steps(model)
        step()
        before = list(model.parameters())
        model.module.load_state_dict(network().state_dict())
        assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
        return step

    trace, _ = captured(train)
    assert sum(one.nbytes for one in communications(trace, "all_reduce")) == LAYERS * LAYER_BYTES


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}])
def test_ddp_reduces_each_gradient_once_and_waits_for_each_bucket(options: dict[str, bool]) -> None:
    trace, _ = captured(lambda: steps(DistributedDataParallel(network(), bucket_cap_mb=0.01, **options)))
    reductions = communications(trace)
    assert {one.kind for one in reductions} == {"all_reduce"}
    assert sum(one.nbytes for one in reductions) == LAYERS * LAYER_BYTES
    assert len(reductions) > 1  # more than one bucket
    assert waits(trace) == dict.fromkeys([one.work for one in reductions], 1)
    last = max(at for at, one in enumerate(trace.operators) if one.phase == "backward")
    first_wait = min(mark.position for mark in trace.marks if mark.kind == "wait_work")
    issued = [at for at, one in enumerate(trace.operators) if one.communication is not None]
    assert max(issued) < first_wait <= last + 1


@pytest.mark.parametrize("options", [{}, {"static_graph": True}])
def test_a_build_with_cuda_reduces_the_same_and_asks_no_driver(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = captured(lambda: steps(DistributedDataParallel(network(), bucket_cap_mb=0.01)))
    monkeypatch.setattr(ddp, "HAS_CUDA", True)
    found, _ = captured(lambda: steps(DistributedDataParallel(network(), bucket_cap_mb=0.01, **options)))
    assert [one.nbytes for one in communications(found)] == [one.nbytes for one in communications(expected)]
    assert [(mark.kind, mark.position) for mark in found.marks] == [
        (mark.kind, mark.position) for mark in expected.marks
    ]


@pytest.mark.skipif(ddp.HAS_CUDA, reason="there a static graph is taken for another one")
@pytest.mark.parametrize("skip", [1, 2])
def test_ddp_with_a_static_graph_says_that_its_second_step_is_not_like_the_later_ones(skip: int) -> None:
    with fake_capture("H100-SXM", world=2, skip=skip) as capture:
        dist.init_process_group("nccl")
        step = steps(DistributedDataParallel(network(), static_graph=True))
        for _ in range(3):
            step()
    assert ["--skip 2" in note for note in capture.notes] == ([True] if skip == 1 else [])


def test_ddp_copies_a_bucket_when_it_was_reduced_and_not_before_a_later_one_was() -> None:
    trace, _ = captured(lambda: steps(DistributedDataParallel(network(), bucket_cap_mb=0.01)))
    positions = [mark.position for mark in trace.marks if mark.kind == "wait_work"]
    assert len(set(positions)) == len(positions)  # a copy out of a bucket stands between two waits
    order = [mark.number for mark in trace.marks if mark.kind == "wait_work"]
    assert order == [one.work for one in communications(trace)]


def test_ddp_that_looks_for_unused_parameters_asks_all_ranks_which_they_used() -> None:
    trace, _ = captured(lambda: steps(DistributedDataParallel(network(), find_unused_parameters=True)))
    *buckets, used = communications(trace)
    assert sum(one.nbytes for one in buckets) == LAYERS * LAYER_BYTES
    assert used.nbytes == BYTES * 4 * LAYERS  # a whole number for each of four parameters a layer
    assert waits(trace) == dict.fromkeys([one.work for one in (*buckets, used)], 1)


def test_ddp_without_synchronisation_sends_nothing() -> None:
    def train() -> Step:
        model = DistributedDataParallel(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            for last in (False, True):
                with torch.enable_grad() if last else model.no_sync():
                    model(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
            optimizer.step()

        return step

    trace, _ = captured(train)
    assert sum(one.nbytes for one in communications(trace)) == LAYERS * LAYER_BYTES


def test_ddp_broadcasts_buffers_and_waits_before_it_goes_on() -> None:
    def train() -> Step:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).cuda()
        return steps(DistributedDataParallel(model))

    trace, _ = captured(train)
    broadcasts = communications(trace, "broadcast")
    assert sum(one.nbytes for one in broadcasts) == 2 * BYTES * WIDTH + 8  # mean, variance, the number of batches
    assert {one.root for one in broadcasts} == {0}
    assert all(waits(trace)[one.work] == 1 for one in broadcasts)


def test_a_hook_of_the_script_says_what_ddp_sends() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    def train() -> Step:
        model = DistributedDataParallel(network())
        model.register_comm_hook(None, fp16_compress_hook)
        return steps(model)

    trace, _ = captured(train)
    assert sum(one.nbytes for one in communications(trace)) == LAYERS * LAYER_BYTES / 2


# ---- fully sharded data parallelism -----------------------------------------------------------------------------


def sharded(**options: Any) -> Callable[[], Step]:
    def train() -> Step:
        model = network()
        for layer in model:
            fully_shard(layer, **options)
        fully_shard(model, **options)
        return steps(model)

    return train


def test_fsdp2_gathers_every_parameter_twice_and_scatters_each_gradient_once() -> None:
    trace, capture = captured(sharded())
    assert capture.groups is not None
    assert capture.groups.sample_axes.data_parallel == {"world"}
    gathers, scatters = communications(trace, "all_gather"), communications(trace, "reduce_scatter")
    assert sorted(one.nbytes for one in gathers) == [LAYER_BYTES] * (2 * LAYERS)
    assert [one.nbytes for one in scatters] == [LAYER_BYTES] * LAYERS
    assert len(communications(trace)) == 3 * LAYERS
    streams = {one.communication.kind: one.stream for one in trace.operators if one.communication is not None}
    assert streams == {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter"}
    assert {mark.stream for mark in trace.marks} >= {"compute", "all_gather", "all_gather_copy_in", "reduce_scatter"}


def test_what_fsdp2_gathers_is_communication_and_not_an_activation() -> None:
    """Packed for the collective, and unpacked into whole parameters: a layer's bytes each; activations are smaller."""
    trace, _ = captured(sharded())
    whole = [one for one in trace.storages if one.category == "communication" and one.nbytes >= 4 * WIDTH * HIDDEN]
    assert whole
    held = max(one.nbytes for one in trace.storages if one.category == "activation")
    assert held <= BATCH * HIDDEN * BYTES


def test_fsdp2_that_keeps_its_parameters_gathers_them_once() -> None:
    trace, _ = captured(sharded(reshard_after_forward=False))
    assert [one.nbytes for one in communications(trace, "all_gather")] == [LAYER_BYTES] * LAYERS


def test_a_rank_of_fsdp2_holds_its_share_of_parameters_gradients_and_states() -> None:
    trace, _ = captured(sharded())
    held: Counter[str] = Counter()
    for storage in trace.storages:
        held[storage.category] += storage.nbytes
    assert held["parameter"] == LAYERS * LAYER_BYTES / 4
    assert held["optimizer_state"] == 2 * held["parameter"]


def test_hybrid_sharding_reduces_shares_over_the_replicas() -> None:
    def train() -> Step:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
        return sharded(mesh=mesh)()

    trace, capture = captured(train, rank=1)
    reductions = communications(trace, "all_reduce")
    assert [(one.group, one.nbytes) for one in reductions] == [("replicate", LAYER_BYTES / 2)] * LAYERS
    assert {one.group for one in communications(trace) if one.kind != "all_reduce"} == {"shard"}
    assert capture.groups is not None
    assert capture.groups.groups["shard"] == ((0, 1), (2, 3))
    assert capture.groups.groups["replicate"] == ((0, 2), (1, 3))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fsdp1_gathers_flat_parameters_and_keeps_the_last_one_gathered() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    def train() -> Step:
        model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        policy = ModuleWrapPolicy({Layer})
        return steps(FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.cuda.current_device()))

    trace, _ = captured(train)
    assert {one.nbytes for one in communications(trace)} == {LAYER_BYTES}
    assert len(communications(trace, "reduce_scatter")) == LAYERS
    assert LAYERS <= len(communications(trace, "all_gather")) <= 2 * LAYERS
    streams = {one.stream for one in trace.operators if one.communication is not None}
    assert streams == {"all_gather", "reduce_scatter"}


# ---- tensor, sequence and context parallelism --------------------------------------------------------------------


def divided(*, sequence: bool = False) -> Callable[[], Step]:
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def train() -> Step:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tensor",))
        model = network()
        for layer in model:
            at = Shard(0) if sequence else None
            plan = {
                "up": ColwiseParallel(input_layouts=at) if sequence else ColwiseParallel(),
                "down": RowwiseParallel(output_layouts=at) if sequence else RowwiseParallel(),
            }
            parallelize_module(layer, mesh, plan)
        return steps(model, foreach=False)

    return train


def test_tensor_parallel_layers_reduce_once_forward_and_once_backward() -> None:
    trace, _ = captured(divided())
    reductions = [one for one in communications(trace) if one.nbytes == BYTES * BATCH * WIDTH]
    assert len(reductions) == 2 * LAYERS - 1  # nobody needs the gradient of the data
    assert {one.kind for one in reductions} == {"all_reduce"}
    products = [one for one in trace.operators if one.name == "aten::addmm"]
    assert [one.outputs[0].shape for one in products] == [(BATCH, HIDDEN // 4), (BATCH, WIDTH)] * LAYERS


def test_what_a_functional_collective_returns_is_awaited_before_it_is_read() -> None:
    trace, _ = captured(divided())
    waited = {mark.number: mark.position for mark in trace.marks if mark.kind == "wait_work"}
    for at, operator in enumerate(trace.operators):
        if operator.communication is None:
            continue
        storage = operator.outputs[0].storage
        readers = [
            later
            for later, one in enumerate(trace.operators[at + 1 :], at + 1)
            if storage in {tensor.storage for tensor in one.inputs}
        ]
        assert readers
        assert at < waited[operator.communication.work] <= readers[0]


def test_sequence_parallelism_gathers_and_scatters_instead_of_reducing() -> None:
    trace, _ = captured(divided(sequence=True))
    whole = BYTES * 4 * BATCH * WIDTH
    large = Counter(one.kind for one in communications(trace) if one.nbytes == whole)
    assert large["all_gather"] >= 2 * LAYERS - 1
    assert large["reduce_scatter"] >= 2 * LAYERS - 1
    assert large["all_reduce"] == 0


def test_shapes_of_the_whole_are_no_memory_of_a_rank() -> None:
    trace, _ = captured(divided())
    assert max(one.nbytes for one in trace.storages) <= BYTES * WIDTH * HIDDEN / 4 + 512


# ---- pipelines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_pipeline_stage_sends_each_micro_batch_forward_and_its_gradient_back(rank: int) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    ranks, micro_batches = 3, 4

    def train() -> Step:
        part = Layer().cuda()
        device = torch.device("cuda", torch.cuda.current_device())
        between = torch.zeros(BATCH // micro_batches, WIDTH, device="meta", requires_grad=True)
        stage = PipelineStage(part, rank, ranks, device, input_args=between, output_args=between)
        schedule = Schedule1F1B(stage, micro_batches, loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD(part.parameters(), lr=0.1)

        def step() -> None:
            data = torch.randn(BATCH, WIDTH, device="cuda")
            schedule.step(*([data] if rank == 0 else []), **({"target": data} if rank == ranks - 1 else {}))
            optimizer.step()

        return step

    trace, _ = captured(train, ranks, rank)
    neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < ranks]
    for kind in ("send", "recv"):
        found = communications(trace, kind)
        assert Counter(one.peer for one in found) == dict.fromkeys(neighbours, micro_batches)
        assert {one.nbytes for one in found} == {BYTES * BATCH // micro_batches * WIDTH}
    assert set(waits(trace)) == {one.work for one in communications(trace)}
    by_batch = Counter(one.batch for one in communications(trace) if one.batch is not None)
    assert by_batch.total() == 0 or max(by_batch.values()) == 2  # a send and the receive that goes with it


# ---- the environment --------------------------------------------------------------------------------------------


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    before = told()
    yield before
    assert told() == before


def told() -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: os.environ[name] for name in names if name in os.environ}


def test_a_rank_finds_what_torchrun_tells_it(environment: dict[str, str]) -> None:
    with fake_capture("H100-SXM", world=16, rank=11):
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (11, 16, "nccl")
        assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("3", "8")
        torch.cuda.set_device(3)
        assert torch.empty(1, device="cuda").device == torch.device("cuda", 3)
    assert not dist.is_initialized()
    assert told() == environment


def test_torch_distributed_is_afterwards_as_it_was() -> None:
    owners = (dist, dist.distributed_c10d, DistributedDataParallel, dist.Reducer, torch._C._distributed_c10d.FakeWork)

    def state() -> list[dict[str, int]]:
        return [{name: id(value) for name, value in vars(owner).items()} for owner in owners]

    captured(lambda: steps(DistributedDataParallel(network())))  # what is imported on the way stays so
    before = state()
    captured(lambda: steps(DistributedDataParallel(network())))
    assert state() == before


def test_collectives_of_a_script_are_what_nccl_tests_would_call_their_size() -> None:
    def train() -> Step:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            mine, all_of_it = torch.ones(8, device="cuda"), torch.ones(32, device="cuda")
            dist.all_reduce(mine)
            dist.all_gather_into_tensor(all_of_it, mine)
            dist.all_gather(list(all_of_it.chunk(4)), mine)
            dist.reduce_scatter_tensor(mine, all_of_it)
            dist.all_to_all_single(all_of_it, all_of_it.clone())
            dist.broadcast(mine, src=2)
            work = dist.reduce(mine, dst=1, async_op=True)
            work.wait()
            work.wait()
            dist.scatter(mine, None, src=1)  # the root alone has all parts
            dist.gather(mine, None, dst=1)
            dist.barrier()
            model(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
            optimizer.step()

        return step

    trace, _ = captured(train)
    found = [(one.kind, one.nbytes, one.root, one.work is None) for one in communications(trace)]
    assert found[:-1] == [
        ("all_reduce", 32, None, True),
        ("all_gather", 128, None, True),
        ("all_gather", 128, None, True),
        ("reduce_scatter", 128, None, True),
        ("all_to_all", 128, None, True),
        ("broadcast", 32, 2, True),
        ("reduce", 32, 1, False),
        ("scatter", 128, 1, True),
        ("gather", 128, 1, True),
    ]
    assert found[-1][0] == "barrier"
    reduction = communications(trace, "reduce")[0]
    assert waits(trace)[reduction.work] == 1


def test_gradients_that_the_script_reduces_by_itself_are_communication_of_the_backward_pass() -> None:
    def train() -> Step:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            model(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            dist.all_reduce(norm)
            optimizer.step()

        return step

    trace, _ = captured(train)
    found = [(one.phase, one.layer) for one in trace.operators if one.communication is not None]
    assert found == [("backward", "communication")] * 4 * LAYERS + [("optimizer", "optimizer")]


def test_an_all_to_all_says_what_it_sends_to_each_rank_where_the_parts_differ() -> None:
    def train() -> Step:
        step = steps(network())
        given = torch.empty(10, 2, device="cuda")

        def exchange() -> None:
            dist.all_to_all_single(torch.empty(4, 2, device="cuda"), given, [1] * 4, [7, 1, 2, 0])
            dist.all_to_all_single(torch.empty(8, 2, device="cuda"), given[:8], [2] * 4, [2] * 4)
            dist.all_to_all([torch.empty(1, device="cuda")] * 4, [given[0], *given[1, 0].expand(3, 1)])
            step()

        return exchange

    trace, _ = captured(train)
    found = [(one.nbytes, one.shares) for one in communications(trace, "all_to_all")]
    assert found == [(80, (56, 8, 16, 0)), (64, None), (20, (8, 4, 4, 4))]


def test_batch_normalisation_is_synchronised_by_two_collectives() -> None:
    def train() -> Step:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).cuda()
        return steps(nn.SyncBatchNorm.convert_sync_batchnorm(model))

    trace, _ = captured(train)
    gathered, reduced = communications(trace)
    # Forward: mean, inverse deviation and a count from each of four ranks; backward: two sums.
    assert (gathered.kind, gathered.nbytes) == ("all_gather", 4 * BYTES * (2 * WIDTH + 1))
    assert (reduced.kind, reduced.nbytes) == ("all_reduce", BYTES * 2 * WIDTH)
    normalised = [
        one for one in trace.operators if one.name in ("aten::batch_norm_elemt", "aten::batch_norm_backward_elemt")
    ]
    assert [one.outputs[0].shape for one in normalised] == [(BATCH, WIDTH)] * 2


def test_python_objects_are_told_to_oneself() -> None:
    with fake_capture("H100-SXM", world=4, rank=1):
        dist.init_process_group("nccl")
        told: list[Any] = [None] * 4
        dist.all_gather_object(told, {"rank": 1})
        assert told == [{"rank": 1}] * 4


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(OptionError, match="no rank 4 in a world of 4"):
        fake_capture("H100-SXM", world=4, rank=4)


@pytest.mark.parametrize(("devices", "asked", "threads"), [(2, None, 1), (2, "3", 2), (1, None, 2)])
def test_as_under_torchrun_ranks_of_one_machine_have_one_thread_each(
    devices: int, asked: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many ranks with as many threads as processors would wait for each other's threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with FakeDevice("H100-SXM", world=2, devices=devices):
        assert torch.get_num_threads() == threads
        assert os.environ.get("OMP_NUM_THREADS") == (asked or ("1" if devices > 1 else None))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("before", [True, False])
def test_distributed_tensors_know_no_device_of_an_earlier_rank(*, before: bool) -> None:
    """Shardings are found on fake tensors, which PyTorch remembers by shape with the device that was the current one."""

    def product_of(columns: int) -> None:
        mesh = init_device_mesh("cuda", (4,))
        rows = DTensor.from_local(torch.randn(4, 8, device="cuda"), mesh, [Shard(0)])
        other = DTensor.from_local(torch.randn(8, columns, device="cuda"), mesh, [Replicate()])
        assert (rows @ other).shape == (16, columns)

    for rank in (0, 1):
        with FakeDevice("H100-SXM", world=4, rank=rank):
            dist.init_process_group("nccl")
            if not before:
                product_of(7)
            torch.cuda.set_device(rank)
            for columns in (7, 7 + rank):
                product_of(columns)
