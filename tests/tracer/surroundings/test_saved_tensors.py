"""What a script saves without a GPU is as small as its shapes, and loads again; real checkpoints load by shape."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import distribute_tensor  # noqa: E402

from triosim.tracer.contents import storage_contents  # noqa: E402
from triosim.tracer.fake_device import FakeDevice  # noqa: E402
from triosim.tracer.surroundings.file_overlay import FileOverlay  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::triosim.errors.CaptureWarning", "ignore::FutureWarning")
WIDTH = 2000


@pytest.fixture
def overlay(tmp_path: Path) -> FileOverlay:
    return FileOverlay(tmp_path / "files")


@pytest.fixture
def device(overlay: FileOverlay) -> Iterator[FakeDevice]:
    with FakeDevice("H100-SXM", files=overlay) as entered:
        yield entered


def trained(device: str = "cuda") -> tuple[nn.Module, Any]:
    model = nn.Linear(WIDTH, WIDTH).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.ones(2, WIDTH, device=device)).sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("place", [None, "cpu", "cuda", {"cuda:0": "cpu"}, lambda storage, place: storage.cuda()])
def test_a_checkpoint_is_small_and_loads_again(
    device: FakeDevice, overlay: FileOverlay, tmp_path: Path, place: Any
) -> None:
    """The weights alone have 16 MB."""
    model, optimizer = trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, tmp_path / "c.pt")
    assert Path(overlay.folder, *tmp_path.parts[1:], "c.pt").stat().st_size < 100_000
    found = torch.load(tmp_path / "c.pt", map_location=place)
    assert found["epoch"] == 3
    weight = found["model"]["weight"]
    assert (weight.shape, weight.dtype) == ((WIDTH, WIDTH), torch.float32)
    assert weight.is_cuda == (place in (None, "cuda") or callable(place))
    assert [state["step"].item() for state in found["optimizer"]["state"].values()] == [3, 3]
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])


def test_what_is_known_is_saved_too(device: FakeDevice, tmp_path: Path) -> None:
    torch.save([torch.arange(3, device="cuda"), torch.tensor(2.5)], tmp_path / "known.pt")
    first, second = torch.load(tmp_path / "known.pt")
    assert (first.tolist(), first.is_cuda, second.item()) == ([0, 1, 2], True, 2.5)


@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"map_location": "cuda"}, {"weights_only": False}])
def test_a_real_checkpoint_loads_by_shape(tmp_path: Path, options: dict[str, Any]) -> None:
    torch.save({"model": nn.Linear(WIDTH, WIDTH).state_dict(), "ids": torch.arange(5)}, tmp_path / "real.pt")
    with FakeDevice("H100-SXM"):
        found = torch.load(tmp_path / "real.pt", **options)
        assert hasattr(found["model"]["weight"], "fake_device")
        assert found["model"]["weight"].shape == (WIDTH, WIDTH)
        assert found["ids"].tolist() == [0, 1, 2, 3, 4]
        nn.Linear(WIDTH, WIDTH).cuda().load_state_dict(found["model"])


def test_files_of_safetensors_are_written_and_read_by_shape(tmp_path: Path, overlay: FileOverlay) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    real = {"weight": torch.ones(WIDTH, WIDTH), "ids": torch.arange(3)}
    safetensors.save_file(real, tmp_path / "real.safetensors")
    with FakeDevice("H100-SXM", files=overlay):
        found = safetensors.load_file(tmp_path / "real.safetensors", device="cuda")
        assert (found["weight"].shape, found["ids"].tolist()) == ((WIDTH, WIDTH), [0, 1, 2])
        safetensors.save_file(found, tmp_path / "ours.safetensors")
        again = safetensors.load_file(tmp_path / "ours.safetensors", device="cuda")
        assert (again["weight"].shape, again["weight"].is_cuda) == ((WIDTH, WIDTH), True)
        safetensors.load_model(nn.Linear(WIDTH, WIDTH, bias=False), tmp_path / "ours.safetensors", strict=False)
        for name in ("real", "ours"):
            with safetensors.safe_open(tmp_path / f"{name}.safetensors", framework="pt", device="cuda:0") as file:
                assert file.keys() == ["ids", "weight"]
                part = file.get_slice("weight")
                assert (part.get_shape(), part.get_dtype()) == ([WIDTH, WIDTH], "F32")
                assert (part[:10].shape, part[:10].is_cuda) == ((10, WIDTH), True)
                assert hasattr(file.get_tensor("weight"), "fake_device")


def test_transformers_saves_and_loads_sharded_files(tmp_path: Path, device: FakeDevice) -> None:
    transformers = pytest.importorskip("transformers")
    shape = {"n_layer": 1, "n_embd": 64, "n_head": 2, "vocab_size": 500, "bos_token_id": 0, "eos_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).cuda()
    model.save_pretrained(tmp_path / "saved", max_shard_size="100KB")
    assert (tmp_path / "saved" / "model.safetensors.index.json").exists()
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved").cuda()
    sizes = [{name: tuple(one.shape) for name, one in each.named_parameters()} for each in (model, again)]
    assert sizes[0] == sizes[1]


def test_a_module_is_saved_whole(device: FakeDevice, tmp_path: Path) -> None:
    """Tied weights stay tied, and a recurrent network finds its weights under all their names."""
    model = nn.ModuleDict(
        {"first": nn.Linear(WIDTH, WIDTH), "tied": nn.Linear(WIDTH, WIDTH), "cells": nn.LSTM(8, 8)}
    ).cuda()
    model["tied"].weight = model["first"].weight
    torch.save({"model": model, "again": model}, tmp_path / "module.pt")
    found = torch.load(tmp_path / "module.pt", weights_only=False)
    loaded = found["model"]
    assert loaded is found["again"]
    assert loaded["tied"].weight is loaded["first"].weight
    assert loaded["first"](torch.ones(2, WIDTH, device="cuda")).shape == (2, WIDTH)
    assert loaded["cells"](torch.ones(2, 3, 8, device="cuda"))[0].is_cuda
    assert len(list(loaded.parameters())) == 3 + 4  # a weight and two biases, and four of the cells


def test_weights_are_assigned_to_a_sharded_model_that_has_none(tmp_path: Path, overlay: FileOverlay) -> None:
    with FakeDevice("H100-SXM", world=4, files=overlay):
        dist.init_process_group("nccl")
        with torch.device("meta"):
            model = fully_shard(nn.Linear(8, 8))
        given = {
            name: distribute_tensor(torch.ones(one.shape, device="cuda"), one.device_mesh, one.placements)
            for name, one in model.state_dict().items()
        }
        model.load_state_dict(given, assign=True)
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        assert model.weight.grad.to_local().shape == (2, 8)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_distributed_checkpoint_is_written_and_read(tmp_path: Path, overlay: FileOverlay, rank: int) -> None:
    with FakeDevice("H100-SXM", world=4, rank=rank, files=overlay):
        dist.init_process_group("nccl")
        model = fully_shard(nn.Linear(WIDTH, WIDTH).cuda())
        dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp")
        state = {"model": model.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path / "dcp")
        model.load_state_dict(state["model"])
        torch.save(model.state_dict(), tmp_path / "sharded.pt")
        local = torch.load(tmp_path / "sharded.pt", weights_only=False)["weight"].to_local()
        assert (local.shape, local.is_cuda) == ((WIDTH // 4, WIDTH), True)


def test_what_became_unknown_on_the_host_is_saved_and_copied_as_its_shape(device: FakeDevice, tmp_path: Path) -> None:
    total, weight = torch.zeros(4), nn.Parameter(torch.ones(2))
    loss = torch.randn(2, device="cuda").sum().cpu()
    total += loss
    weight.data += loss
    torch.save({"total": total, "loss": loss, "weight": weight, "known": torch.arange(3)}, tmp_path / "a.pt")
    found = torch.load(tmp_path / "a.pt", weights_only=False)
    assert found["known"].tolist() == [0, 1, 2]
    assert isinstance(found["weight"], nn.Parameter)
    copies = (copy.deepcopy(total), copy.deepcopy(weight), pickle.loads(pickle.dumps(total)))
    for one in (found["total"], found["loss"], found["weight"], *copies):
        assert not storage_contents.is_known(one)


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(device: FakeDevice, tmp_path: Path) -> None:
    torch.save(torch.arange(3), tmp_path / "a.pt")
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        torch.save([torch.ones(3), lambda: None], tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt").tolist() == [0, 1, 2]
    assert "a.pt.part" not in os.listdir(tmp_path)
