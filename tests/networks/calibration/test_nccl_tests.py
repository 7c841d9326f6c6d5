"""The text of nccl-tests: which collective, how many GPUs on how many hosts, and the times, in every layout it has had."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.errors import TriosimError
from triosim.networks.calibration.fit import measured
from triosim.networks.calibration.fit.fitting import MeasuredCollective

DEVICES = "".join(
    f"#  Rank {rank:2} Group  0 Pid  {900 + rank} on  {host} device  {rank % 2} [0x0{rank}] NVIDIA H100 80GB HBM3\n"
    for rank, host in enumerate(("left", "left", "right", "right"))
)
HEAD = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
"""
COLUMNS = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
REDUCED = """\
        1024           256     float     sum      -1    20.50    0.05    0.07      0    19.00    0.05    0.08      0
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    38.00   27.59   41.39      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 19.7
"""


def rows(
    tmp_path: Path, text: str, name: str = "out.txt", collective: str | None = None
) -> list[measured.MeasuredCollective]:
    (tmp_path / name).write_text(text)
    return measured.read(tmp_path / name, collective=collective)


def test_a_run_says_its_ranks_hosts_sizes_and_out_of_place_times(tmp_path: Path) -> None:
    found = rows(tmp_path, HEAD + DEVICES + COLUMNS + REDUCED)
    assert [(row.gpus, row.nodes, row.nbytes, row.seconds) for row in found] == [
        (4, 2, 1024, pytest.approx(20.5e-6)),
        (4, 2, 1048576, pytest.approx(40e-6)),
    ]
    assert {row.kind for row in found} == {"all_reduce"}  # the bus bandwidth is 2 x 3/4 of the algorithm's


def test_a_launcher_writes_before_each_line(tmp_path: Path) -> None:
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in (HEAD + DEVICES + COLUMNS + REDUCED).splitlines())
    assert rows(tmp_path, text) == rows(tmp_path, HEAD + DEVICES + COLUMNS + REDUCED)


def test_the_name_of_the_test_decides_where_bandwidths_cannot(tmp_path: Path) -> None:
    body = "        1024            64     float    none      -1    10.00    0.10    0.08   0   N/A   N/A   N/A   N/A\n"
    text = HEAD + DEVICES + COLUMNS + body
    assert rows(tmp_path, "$ ./build/alltoall_perf -g 1\n" + text)[0].kind == "all_to_all"
    assert rows(tmp_path, "# Collective test starting: all_gather_perf\n" + text)[0].kind == "all_gather"
    assert rows(tmp_path, text, "all-gather-h100.log")[0].kind == "all_gather"
    assert rows(tmp_path, text, collective="alltoall")[0].kind == "all_to_all"
    with pytest.raises(TriosimError, match=r"does not say which collective it is; give one, such as --collective"):
        rows(tmp_path, text)


def test_several_runs_in_one_file_stay_apart(tmp_path: Path) -> None:
    two = "".join(line for line in DEVICES.splitlines(keepends=True) if "left" in line)
    text = (
        "all_reduce_perf\n"
        + HEAD
        + DEVICES
        + COLUMNS
        + REDUCED
        + "reduce_scatter_perf\n"
        + HEAD
        + two
        + COLUMNS
        + REDUCED
    )
    assert [(row.kind, row.gpus, row.nodes) for row in rows(tmp_path, text)] == [
        *2 * [("all_reduce", 4, 2)],
        *2 * [("reduce_scatter", 2, 1)],
    ]


def test_the_old_layout_without_a_root(tmp_path: Path) -> None:
    text = """# nThread 1 nGpus 8 minBytes 1048576 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum    52.40   20.01   35.02  2e-07    51.00   20.56   35.98  2e-07
"""
    (found,) = rows(tmp_path, text)
    assert (found.kind, found.gpus, found.seconds) == ("all_reduce", 8, pytest.approx(52.4e-6))


def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path: Path) -> None:
    alone = "#  Rank  0 Pid 7 on left device  0 [0x00] Tesla V100-SXM2-16GB\n"
    with pytest.raises(TriosimError, match="is a run of one GPU; build nccl-tests with MPI=1"):
        rows(tmp_path, "all_reduce_perf\n" + HEAD + alone + COLUMNS + REDUCED)


def test_output_that_is_cut_off_is_refused_with_its_line(tmp_path: Path) -> None:
    whole = "all_reduce_perf\n" + HEAD + DEVICES + COLUMNS + REDUCED
    cut = whole[: whole.index("26.21")]
    assert len(rows(tmp_path, whole)) == 2
    with pytest.raises(TriosimError, match=r"out\.txt:14: is a row without times"):
        rows(tmp_path, cut)


TABLE = "num_gpus,bytes,latency_us\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no column gpus or num_gpus"),
        ("collective,num_gpus,bytes\nall_reduce,2,8\n", "has no column latency_ns or latency_us or"),
        ("collective,num_gpus,bytes,latency_us\nall_redcue,2,8,9\n", "t.csv:2: unknown collective 'all_redcue'; did you mean"),
        (TABLE + "2,8,9\n", "does not say which collective it is; add a column 'collective'"),
        ("collective," + TABLE, "holds no rows"),
        ("collective," + TABLE + "all_reduce,2,8,-1\n", "t.csv:2: latency_us: '-1' is not a number above zero"),
        ("collective," + TABLE + "all_reduce,2,8,nan\n", "'nan' is not a number above zero"),
        ("collective," + TABLE + "all_reduce,1,8,9\n", "t.csv:2: 1 GPUs on 1 nodes"),
        ("collective," + TABLE + "all_reduce,2,8.5,9\n", "'8.5' is not a whole number"),
        ("collective," + TABLE + "all_reduce,2,8\n", "t.csv:2: latency_us: '' is not a number above zero"),
        ("collective," + TABLE + "all_reduce,2,8,9,9\n", "t.csv:2: has more than 4 cells"),
        ("collective,gpu," + TABLE + "all_reduce,a100,2,8,9\nall_reduce,v100,2,8,9\n", "has rows of a100 and v100; choose one"),
        ("collective,bytes," + TABLE + "all_reduce,1,2,8,9\n", "has two columns of one name"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_said_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TriosimError) as error:
        measured.read(tmp_path / "t.csv")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_table_may_be_about_several_systems_and_have_columns_for_people(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "collective,gpus,system,dtype,bytes,seconds,source\n"
        "alltoall,4,L40S (PCIe),half,8,1e-5,\nall_reduce,4,B200-SXM,half,16,1e-5,\n"
    )
    (found,) = measured.read(tmp_path / "t.csv", system="dgx-b200")
    assert found == MeasuredCollective("all_reduce", 4, 16.0, 1e-5)
    assert [row.kind for row in measured.read(tmp_path / "t.csv", gpu="L40S")] == ["all_to_all"]


def test_what_a_run_says_at_its_end_is_not_the_next_one(tmp_path: Path) -> None:
    """Newer versions name the test when it starts and when it has ended."""
    start, end = (
        "# Collective test starting: reduce_scatter_perf\n",
        "# Collective test concluded: reduce_scatter_perf\n",
    )
    text = start + HEAD + DEVICES + COLUMNS + REDUCED + end + HEAD + DEVICES + COLUMNS + REDUCED
    assert [row.kind for row in rows(tmp_path, text)] == [*2 * ["reduce_scatter"], *2 * ["all_reduce"]]
