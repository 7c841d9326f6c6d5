"""Tables of several systems are judged in one run: each row on its own system, groups, refusals, and what is shown of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triosim import Topology, cli
from triosim.networks.calibration.deepep import DeepEPCollectives
from triosim.networks.calibration.fit import system_evaluation, system_table
from triosim.tasks import DeepEP

Run = Callable[..., tuple[int, str, str]]
HEADER = "collective,gpus,nodes,gpu,nic,bytes,time_us,healthy"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        status = cli.run([*map(str, arguments)])
        return status, *capsys.readouterr()

    return call


def judged(run: Run, path: Path, *lines: str, header: str = HEADER) -> dict[str, Any]:
    path.write_text("\n".join([header, *lines]) + "\n")
    status, out, err = run("calibrate", "evaluate", path, "--format", "json")
    assert status == 0, err
    return json.loads(out)


def test_rows_are_judged_on_their_own_systems_and_grouped_by_them(run: Run, tmp_path: Path) -> None:
    """Times that a topology says are off by nothing; half of the time is off by 100%, and so is what is refused."""
    import simpy

    from triosim.networks import AnalyticalNetwork

    def seconds(name: str, gpus: int, nbytes: float) -> float:
        network = AnalyticalNetwork(simpy.Environment(), Topology.load(name))
        return network.seconds("all_reduce", range(gpus), nbytes)

    node, pair = seconds("dgx-h100", 8, 2**20) * 1e6, seconds("dgx-a100(nodes=2)", 16, 2**10) * 1e6
    said = judged(
        run,
        tmp_path / "t.csv",
        f"all_reduce,8,1,H100-SXM5-80GB,,{2**20},{node},yes",
        f"all_reduce,8,1,H100-SXM5-80GB,,{2**20},{node / 2},yes",
        f"all_reduce,16,2,A100,8x200 Gb/s InfiniBand,{2**10},{pair},yes",
        f"all_reduce,16,2,A100,8x200 Gb/s InfiniBand,{2**10},{pair},no",
        "all_reduce,16,2,unstated,8x200 Gb/s InfiniBand,8,30,yes",
    )
    first, second, ill, refused = said["groups"]
    keys = ("gpu", "nodes", "nic", "collective", "rows", "healthy")
    assert [first[key] for key in keys] == ["H100-SXM5-80GB", 1, "", "all_reduce", 2, "yes"]
    assert [second[key] for key in keys] == ["A100", 2, "8x200 Gb/s InfiniBand", "all_reduce", 1, "yes"]
    assert ill["healthy"] == "no"
    assert first["mape_percent"] == first["mape_large_percent"] == pytest.approx(50)
    assert first["mape_small_percent"] is None
    assert second["mape_small_percent"] == pytest.approx(0, abs=1e-6)
    assert refused["mape_percent"] == 100
    assert refused["refused"] == [{"reason": "the GPU is not stated", "rows": 1}]
    assert said["rows"] == 5
    assert said["mape_percent"] == pytest.approx((0 + 100 + 0 + 0 + 100) / 5)
    assert said["collectives"]["all_reduce"]["mape_small_percent"] == pytest.approx(100 / 3)


def test_a_table_without_a_system_is_of_the_gpu_in_its_name(run: Run, tmp_path: Path) -> None:
    line, header = "all_reduce,8,1048576,0.05", "collective,num_gpus,bytes,latency_ms"
    (group,) = judged(run, tmp_path / "nccl_h100_nvswitch.csv", line, header=header)["groups"]
    assert (group["gpu"], group["topology"]) == ("h100", "dgx-h100")
    (tmp_path / "rows_of_nobody.csv").write_text(f"{header}\n{line}\n")
    status, _, err = run("calibrate", "evaluate", tmp_path / "rows_of_nobody.csv")
    assert (status, "rows_of_nobody.csv: does not say on which system it was measured" in err) == (2, True)
    status, out, _ = run("calibrate", "evaluate", tmp_path / "rows_of_nobody.csv", "--gpu", "H200", "--format", "json")
    assert (status, json.loads(out)["groups"][0]["topology"]) == (0, "dgx-h200")


def test_gpu_chooses_among_the_systems_of_a_table(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "collective,gpus,system,bytes,seconds\nall_reduce,2,B200-SXM,8,1e-5\nall_reduce,2,L40S (PCIe),8,1e-5\n"
    )
    status, out, _ = run("calibrate", "evaluate", path, "--gpu", "L40S", "--format", "json")
    assert (status, [group["system"] for group in json.loads(out)["groups"]]) == (0, ["L40S (PCIe)"])
    status, _, err = run("calibrate", "evaluate", path, "--gpu", "A100")
    assert (status, "holds no rows; it has no rows of A100" in err) == (2, True)


def test_a_cell_that_is_no_number_refuses_its_row(run: Run, tmp_path: Path) -> None:
    said = judged(run, tmp_path / "t.csv", "AllReduce,8,1,H100,,8,,yes", "gossip,8,1,H100,,8,1,yes")
    assert [(group["collective"], group["refused"][0]["reason"]) for group in said["groups"]] == [
        ("all_reduce", "time_us: '' is not a number above zero"),
        ("gossip", "unknown collective 'gossip'"),
    ]


@pytest.mark.parametrize(
    ("header", "lacking"),
    [
        ("collective,gpus,gpu,bytes", "latency_ns or latency_us or"),
        ("collective,gpus,gpu,time_us", "bytes"),
        ("collective,gpu,bytes,time_us", "gpus or num_gpus"),
    ],
)
def test_a_missing_column_refuses_the_table(run: Run, tmp_path: Path, header: str, lacking: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\nall_reduce,8,8,8\n")
    status, _, err = run("calibrate", "evaluate", path)
    assert (status, f"has no column {lacking}" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "algorithm"),
    [
        ("NCCL_ALGO=Ring NCCL_PROTO=Simple", "ring"),
        ("NCCL_ALGO=allreduce:nvlstree", "nvls-tree"),
        ("NCCL_ALGO=Tree", "tree"),
        ("NVLS", "nvls"),
        ("NCCL_NVLS_ENABLE=0", "not-nvls"),
        ("default (Ring picked)", None),
        ("NCCL default", None),
        ("", None),
    ],
)
def test_the_algorithm_of_a_row_is_the_one_that_was_asked_of_nccl(text: str, algorithm: str | None) -> None:
    assert system_table.algorithm_of(text) == algorithm


def test_an_all_reduce_without_nvls_is_on_switches_that_do_not_reduce(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{kind},8,H200,8,1e-5,Ring" for kind in ("all_reduce", "all_gather")]
    path.write_text("\n".join(["collective,gpus,gpu,bytes,seconds,algorithm", *lines, "all_reduce,8,H200,8,1e-5,NVLS"]))
    found = [row.system.topology().outline for row in system_table.read(str(path)) if row.system]
    assert [outline.spec.in_switch_reduction for outline in found if outline] == [False, True, True]


def test_sends_to_the_next_rank_take_what_two_gpus_of_two_nodes_take_to_exchange(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "collective,gpus,nodes,gpu,nic,bytes,seconds"
    lines = [
        "sendrecv,16,2,A100,8x200 Gb/s InfiniBand,8388608,1",
        "alltoall,2,2,A100,8x200 Gb/s InfiniBand,16777216,1",
        "alltoall,2,1,A100,,16777216,1",
    ]
    path.write_text("\n".join([head, *lines]) + "\n")
    predictions = system_evaluation._Predictions()
    ring, between, inside = (predictions.of(row).seconds for row in system_table.read(str(path)))
    assert ring == pytest.approx(max(between, inside))


def test_kernels_of_deepep_are_judged_on_the_nodes_of_their_rows(run: Run, tmp_path: Path) -> None:
    """Times that a topology says are off by nothing; in fp8 a token of 7,168 has 7,168 (1 + 4/128) bytes, in bf16 14,336."""
    nodes = Topology.load("dgx-h100(nodes=2)")
    known = DeepEPCollectives(nodes, nodes)
    dispatch, combine = (
        1e6 * known.seconds(range(16), DeepEP(step, 4096, nbytes, 8, 256, 2, 2, sms=24))
        for step, nbytes in (("dispatch", 7168 * (1 + 4 / 128)), ("combine", 14336))
    )
    said = judged(
        run,
        tmp_path / "t.csv",
        f"7168,4096,8,256,2,24,{dispatch - 5},5,24,{combine},0,H100-SXM5",
        f"7168,4096,8,256,2,24,{dispatch / 2},0,24,{combine},0,H100-SXM5",
        "7168,4096,8,256,2,24,,0,24,30,0,H100-SXM5",
        "7168,4096,8,256,1,24,30,0,24,30,0,Gaudi 3",
        header="hidden_size,num_token,num_topk,num_experts,node_num,dispatch_sms,dispatch_transmit_us,dispatch_notify_us,"
        "combine_sms,combine_transmit_us,combine_notify_us,system",
    )
    there, back, *unknown = said["groups"]
    assert [there[key] for key in ("system", "nodes", "collective", "rows")] == ["H100-SXM5", 2, "dispatch", 3]
    assert there["mape_percent"] == pytest.approx((0 + 100 + 100) / 3)
    assert there["refused"] == [{"reason": "dispatch_transmit_us: '' is not a number above zero", "rows": 1}]
    assert [one["refused"][0]["reason"] for one in unknown] == ["unknown system 'Gaudi 3'"] * 2
    assert back["collective"] == "combine"
    assert back["topology"] == "dgx-h100 x 2"


def test_what_is_shown_fits_80_columns(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "t.csv"
    long = "H200-SXM (p5en.48xlarge) of a cloud with a long name,16x200 Gb/s EFA (8x400 Gb/s total)"
    lines = [f"reduce_scatter,128,16,{long},{size},900,yes (but slow)" for size in (2**10, 2**30)]
    path.write_text(
        "\n".join([HEADER, *lines, f"all_reduce,8,1,a system that nobody knows {'x' * 60},,8,1,yes"]) + "\n"
    )
    status, out, _ = run("calibrate", "evaluate", path)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "1 row refused, off by 100% each: unknown system" in out


def test_thousands_of_rows_take_seconds(data_dir: Path) -> None:
    start = time.perf_counter()
    found = system_evaluation.evaluate(str(data_dir / "collectives" / "nccl_more_systems.csv.gz"))
    found_large = system_evaluation.evaluate(str(data_dir / "collectives" / "h100_scale_digitised.csv.gz"))
    assert (found.total.total.rows, found_large.total.total.rows) == (2594, 67)
    assert {group.group.name for group in found.groups} == {"B200-SXM", "B300-SXM", "GB200 (4-GPU tray)", "L40S (PCIe)"}
    assert time.perf_counter() - start < 10.0


def test_every_table_is_judged_as_it_is(data_dir: Path) -> None:
    for path in sorted((data_dir / "collectives").glob("*.csv.gz")):
        assert system_table.is_collectives(str(path))
        found = system_evaluation.evaluate(str(path)).as_dict()
        assert sum(group["rows"] for group in found["groups"]) == found["rows"]
    assert not system_table.is_collectives(str(data_dir / "operators" / "gemm_bf16_h100.csv.gz"))
