"""The GPU catalogue: what data sheets say, under the names that PyTorch reports, and GPUs of a user's own."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from triosim import gpus
from triosim.errors import OptionError
from triosim.gpus.known_gpus import normalised

REPORTED = {
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200-NVL",
    "NVIDIA B200": "B200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB200": "GB200",
    "NVIDIA GB300": "GB300",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA H20": "H20",
    "NVIDIA A10G": "A10G",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX-PRO-6000-Server",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX-PRO-6000",
    "NVIDIA RTX A6000": "RTX-A6000",
    "NVIDIA A100-SXM4-40GB": "A100-SXM-40GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM-80GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIe-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "Tesla V100-SXM2-16GB": "V100-SXM2-16GB",
    "Tesla V100-PCIE-32GB": "V100-PCIe-32GB",
    "Tesla P100-PCIE-16GB": "P100-PCIe",
    "Tesla T4": "T4",
    "NVIDIA L40S": "L40S",
    "AMD Instinct MI300X": "MI300X",
    "NVIDIA GeForce RTX 4090": "RTX-4090",
    "cpu": "CPU",
    "h100": "H100-SXM",
}


@pytest.mark.parametrize("reported", REPORTED)
def test_a_gpu_is_found_by_what_pytorch_calls_it(reported: str) -> None:
    assert gpus.find(reported).name == REPORTED[reported]


def test_letters_that_look_like_digits_are_read_as_these_in_what_is_suggested() -> None:
    with pytest.raises(OptionError, match=r"'H1OO' in the catalogue; did you mean 'H100'\?$"):
        gpus.find("H1OO")


def test_no_name_stands_for_two_gpus() -> None:
    names = [normalised(name) for gpu in gpus.catalogue() for name in {normalised(n) for n in (gpu.name, *gpu.aliases)}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("gpu", gpus.catalogue(), ids=lambda gpu: gpu.name)
def test_an_entry_is_complete_and_narrower_formats_are_no_slower(gpu: gpus.Gpu) -> None:
    assert gpu.source
    assert min(gpu.bandwidth, gpu.capacity, gpu.l2_bytes, gpu.sms, gpu.clock_hz, gpu.pcie_bandwidth, gpu.tdp_watts) > 0
    rates = [gpu.rate(dtype) for dtype in ("float64", "float32", "tf32", "float16", "float8_e4m3fn")]
    assert gpu.architecture == "x86" or rates == sorted(rates)


#: Of each GPU: FP32 lanes of a multiprocessor, half-precision FLOPs that its tensor cores do in a cycle, bits of the memory's
#: bus, Gbit/s of a pin, links to other GPUs and GB/s of one in one direction, generation of PCIe.
BUILT = {
    "M40": (128, 0, 384, 6.0, 0, 0, 3),
    "Titan-X-Maxwell": (128, 0, 384, 7.0, 0, 0, 3),
    "Titan-X-Pascal": (128, 0, 384, 10.0, 0, 0, 3),
    "Titan-Xp": (128, 0, 384, 11.4, 0, 0, 3),
    "GTX-1080-Ti": (128, 0, 352, 11.0, 0, 0, 3),
    "P4": (128, 0, 256, 6.0, 0, 0, 3),
    "P100-PCIe": (64, 0, 4096, 1.43, 0, 0, 3),
    "P100-SXM2": (64, 0, 4096, 1.43, 4, 20, 3),
    "V100-SXM2-16GB": (64, 1024, 4096, 1.752, 6, 25, 3),
    "V100-SXM2-32GB": (64, 1024, 4096, 1.752, 6, 25, 3),
    "V100-PCIe-16GB": (64, 1024, 4096, 1.752, 0, 0, 3),
    "V100-PCIe-32GB": (64, 1024, 4096, 1.752, 0, 0, 3),
    "T4": (64, 1024, 256, 10.0, 0, 0, 3),
    "RTX-A6000": (128, 1024, 384, 16.0, 4, 14.0625, 4),
    "A40": (128, 1024, 384, 14.5, 4, 14.0625, 4),
    "A100-SXM-40GB": (64, 2048, 5120, 2.43, 12, 25, 4),
    "A100-SXM-80GB": (64, 2048, 5120, 3.186, 12, 25, 4),
    "A100-PCIe-40GB": (64, 2048, 5120, 2.43, 12, 25, 4),
    "A100-PCIe-80GB": (64, 2048, 5120, 3.024, 12, 25, 4),
    "L4": (128, 1024, 192, 12.5, 0, 0, 4),
    "L40S": (128, 1024, 384, 18.0, 0, 0, 4),
    "H100-SXM": (128, 4096, 5120, 5.238, 18, 25, 5),
    "H100-PCIe": (128, 4096, 5120, 3.186, 12, 25, 5),
    "H100-NVL": (128, 4096, 6016, 5.238, 12, 25, 5),
    "H200": (128, 4096, 6144, 6.25, 18, 25, 5),
    "H200-NVL": (128, 4096, 6144, 6.25, 18, 25, 5),
    "B200": (128, 8192, 7680, 7.992, 18, 50, 5),
    "H800": (128, 4096, 5120, 5.238, 8, 25, 5),
    "H20": (128, 1024, 6144, 5.2, 18, 25, 5),  # tensor cores at a quarter of the H100's rate
    "GH200": (128, 4096, 6144, 5.2, 18, 25, 5),
    "B300": (128, 8192, 8192, 7.5, 18, 50, 6),
    "GB200": (128, 8192, 8192, 7.8125, 18, 50, 5),
    "GB300": (128, 8192, 8192, 7.8125, 18, 50, 6),
    "GB10": (128, 1024, 256, 8.533, 0, 0, 5),
    "A10G": (128, 512, 384, 12.5, 0, 0, 4),
    "RTX-5090": (128, 512, 512, 28.0, 0, 0, 5),
    "RTX-PRO-6000": (128, 1024, 512, 28.0, 0, 0, 5),
    "RTX-PRO-6000-Server": (128, 1024, 512, 25.0, 0, 0, 5),
    "MI25": (64, 0, 2048, 1.89, 0, 0, 3),
    "Vega-FE": (64, 0, 2048, 1.89, 0, 0, 3),
    "Xeon-Phi-7250": (32, 0, 512, 7.2, 0, 0, 3),
    "MI250": (128, 1024, 4096, 3.2, 3, 50, 4),  # 64 lanes; its matrix cores do float32 twice as fast
    "MI300X": (128, 2048, 8192, 5.2, 7, 64, 5),
    "RTX-3090": (128, 512, 384, 19.5, 4, 14.0625, 4),
    "RTX-4090": (128, 512, 384, 21.0, 0, 0, 4),
    "CPU": (32, 1024, 512, 4.8, 0, 0, 5),
}


def test_every_gpu_is_built_of_something() -> None:
    assert set(BUILT) == {gpu.name for gpu in gpus.catalogue()}


@pytest.mark.parametrize("name", BUILT)
def test_the_figures_of_a_data_sheet_follow_from_what_the_gpu_is_built_of(name: str) -> None:
    """A lane and a cycle are two operations; a transfer of PCIe 3 carries 8 Gbit/s a lane, of which 128 in 130 are data."""
    gpu = gpus.find(name)
    lanes, tensor, bits, rate, links, link, generation = BUILT[name]
    assert gpu.flops["float32"] == pytest.approx(gpu.sms * lanes * 2 * gpu.clock_hz, rel=0.015)
    assert gpu.bandwidth == pytest.approx(bits * rate * 1e9 / 8, rel=0.025)
    assert gpu.nvlink_bandwidth == links * link * 1e9
    assert gpu.pcie_bandwidth == pytest.approx(16 * 8e9 * 2 ** (generation - 3) * 128 / 130 / 8, rel=0.001)
    if tensor:  # from Hopper on, tensor cores run at a lower clock than the boost of the rest
        half = gpu.flops.get("float16", gpu.rate("bfloat16"))
        assert 0.85 <= half / (gpu.sms * tensor * gpu.clock_hz) <= 1.01


@pytest.mark.parametrize("gpu", gpus.catalogue(), ids=lambda gpu: gpu.name)
def test_tensor_cores_halve_with_each_doubling_of_the_width(gpu: gpus.Gpu) -> None:
    """Dense peaks: TF32 at half of the rate of half precision, FP8 at twice, FP4 at four times, in chips that gave up float64
    for it six times. One with sparsity would be out of step.
    """
    if "tf32" in gpu.flops:
        assert gpu.flops["float16"] == pytest.approx(2 * gpu.flops["tf32"], rel=0.02)
    if "float8_e4m3fn" in gpu.flops:
        assert gpu.flops["float8_e4m3fn"] == pytest.approx(2 * gpu.flops["float16"], rel=0.01)
    if "float4_e2m1fn_x2" in gpu.flops:
        times = 6 if gpu.name in ("B300", "GB300") else 8 if gpu.name == "RTX-5090" else 4
        assert gpu.flops["float4_e2m1fn_x2"] == pytest.approx(times * gpu.flops["float16"], rel=0.01)
    if "bfloat16" in gpu.flops and "float16" in gpu.flops:
        assert gpu.flops["bfloat16"] == gpu.flops["float16"]


@pytest.mark.parametrize("gpu", gpus.catalogue(), ids=lambda gpu: gpu.name)
def test_a_gpu_names_the_document_that_its_figures_are_from(gpu: gpus.Gpu) -> None:
    assert any(word in gpu.source for word in ("data sheet", "white paper", "product brief", "ark.intel.com"))
    assert "/" not in gpu.source.replace("GB/s", "").replace("TFLOP/s", "")


def test_what_a_gpu_has_no_units_for_runs_in_the_next_wider_format() -> None:
    assert gpus.find("V100").rate("bfloat16") == gpus.find("V100").rate("float32")
    assert gpus.find("A100").rate("float8_e4m3fn") == gpus.find("A100").rate("float16")
    assert gpus.find("T4").rate("tf32") == gpus.find("T4").rate("float32")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"no GPU 'H10'.*did you mean 'H100'"):
        gpus.find("H10")
    with pytest.raises(OptionError, match="'triosim gpus' lists all; or give a file of your own"):
        gpus.find("abacus")


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("operators/linear_fp32_multi_gpu", "device"),
        ("operators/gemm_deepbench", "gpu"),
        ("convolutions/neusight_fp32", "gpu"),
        ("convolutions/deepbench", "gpu"),
        ("image_models/timm", "gpu"),
    ],
)
def test_all_devices_of_the_measured_tables_are_in_the_catalogue(data_dir: Path, table: str, column: str) -> None:
    with gzip.open(data_dir / f"{table}.csv.gz", "rt") as file:
        devices = {row[column] for row in csv.DictReader(file)}
    assert [device for device in devices if gpus.get(device) is None] == []


# ---- a user's own ----------------------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_a_users_gpu_is_a_file_with_units(tmp_path: Path) -> None:
    gpu = gpus.find(
        written(
            tmp_path,
            "name: Mine\nflops: {float32: 20 TFLOP/s}\nbandwidth: 2 TB/s\ncapacity: 64 GB\nclock_hz: 1.5 GHz\n",
        )
    )
    assert (gpu.flops, gpu.bandwidth, gpu.capacity, gpu.clock_hz) == ({"float32": 2e13}, 2e12, 64e9, 1.5e9)
    assert gpus.get("mine") == gpu  # from then on, by its name


def test_a_gpu_like_another_differs_in_what_the_file_says(tmp_path: Path) -> None:
    h100, gpu = gpus.find("H100"), gpus.find(written(tmp_path, "like: H100\nbandwidth: 8 TB/s\n"))
    changed = {key for key, value in asdict(h100).items() if asdict(gpu)[key] != value}
    assert changed == {"name", "aliases", "source", "like", "bandwidth"}
    assert gpu.bandwidth == 8e12


def test_what_is_printed_as_json_is_a_gpu_file_of_another_name(tmp_path: Path) -> None:
    from triosim.reports.terminal.gpu_table import as_json

    values = json.loads(as_json(gpus.find("L4")))
    values |= {"name": "another L4", "aliases": []}
    path = tmp_path / "l4.json"
    path.write_text(json.dumps(values))
    assert gpus.find(path).flops == gpus.find("L4").flops


WRONG = [
    ("flop: 3", "mine.yaml:1: flop: unknown key; did you mean 'flops'?"),
    ("name: a\nflops: {float31: 3}", "mine.yaml:2: flops: unknown dtype 'float31'; did you mean 'float32'?"),
    ("bandwidth: -3 GB/s", "mine.yaml:1: bandwidth: -3 GB/s is not a positive number"),
    ("capacity: 3 bananas", "mine.yaml:1: capacity: unknown unit 'bananas'"),
    ("clock_hz: 3 GB", "mine.yaml:1: clock_hz: '3 GB' is not a quantity"),
    ("sms: many", "mine.yaml:1: sms: 'many' is not a whole number"),
    ("like: H10\n", "mine.yaml:1: like: the catalogue has no GPU 'H10'"),
    (
        "name: x\nflops: {bfloat16: 3 TFLOP/s}\nbandwidth: 3 TB/s\ncapacity: 3 GB",
        "mine.yaml:2: flops: 'float32' is missing",
    ),
    (
        "name: x\nflops: {float32: 3 TFLOP/s}\ncapacity: 3 GB",
        "'bandwidth' is missing; write for example 'bandwidth: 3.35 TB/s'",
    ),
    (
        "name: x\nflops: {float32: 67}\nbandwidth: 3 TB/s\ncapacity: 3 GB",
        "mine.yaml:2: flops: 67 is less than any GPU has",
    ),
    (
        "bandwidth: 3.35",
        "mine.yaml:1: bandwidth: 3.35 is less than any GPU has; is the unit missing? Write for example",
    ),
    ("like: H100\nname: A100", "'A100' is a GPU of the catalogue"),
    ("- 1", "not a mapping"),
    ("a: [", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_names_file_line_and_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        gpus.find(written(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(OptionError, match=r"none\.yaml: cannot be read"):
        gpus.find("none.yaml")


# ---- what differs, in parentheses ------------------------------------------------------------------------------------


def test_a_board_is_a_name_with_the_keys_that_differ() -> None:
    h100, board = gpus.find("H100"), gpus.find("H100(power=500 W, bandwidth=2.4 TB/s, flops={fp8: 1 PFLOP/s})")
    assert (board.tdp_watts, board.bandwidth, board.flops["float8_e4m3fn"]) == (500.0, 2.4e12, 1e15)
    unlike = {key for key, value in asdict(h100).items() if asdict(board)[key] != value}
    assert unlike == {"name", "aliases", "source", "like", "tdp_watts", "bandwidth", "flops"}
    assert gpus.get(board.name) == board  # a trace of it is read where nobody has named the board before


def test_boards_whose_values_differ_in_a_decimal_point_are_two() -> None:
    assert gpus.find("H100(bandwidth=2.4 TB/s)").bandwidth * 10 == gpus.find("H100(bandwidth=24 TB/s)").bandwidth


def test_a_users_gpu_has_boards_too(tmp_path: Path) -> None:
    gpus.find(written(tmp_path, "like: H100\nname: our H100\ncapacity: 96 GB\n"))
    board = gpus.find("our H100(power=500 W)")
    assert (board.capacity, board.tdp_watts, board.like) == (96e9, 500.0, "H100-SXM")


def test_the_peaks_follow_the_clock() -> None:
    """1.98 GHz are 989.4 TFLOP/s, so 0.99 GHz are half; the chip is the same, and what was measured of it holds."""
    board = gpus.find("H100(clock=0.99 GHz)")
    assert board.flops["bfloat16"] == pytest.approx(989.4e12 / 2)
    found = gpus.same_chip(board, ["A100", "H100"])
    assert found is not None
    assert found.name == "H100-SXM"


WRONG_BOARDS = [
    ("H100(pwer=500 W)", r"H100\(pwer=500 W\): pwer: unknown key; did you mean 'power'\?"),
    ("H100(power=500 GB)", "power: '500 GB' is not a quantity; write one such as '700 W'"),
    ("H100(500 W)", r"'500 W' is no key of a board; write for example 'H100-SXM\(power=500 W\)'"),
    ("H100(power=1, power=2)", "'power' is given twice"),
    ("H100(power=1, tdp_watts=2)", "'tdp_watts' is given twice"),
    ("H100(name=mine)", "'name' is no key of a board"),
    ("H10(power=500 W)", "there is no GPU"),
    ("H100(flops=[)", "not valid YAML"),
    ("H100(power=500 W", r"H100\(power=500 W: a parenthesis is not closed; end it in '\)'"),
    ("H100(power=500 W bandwidth=2 TB/s)", "a comma is missing before 'bandwidth'; write 'power=500 W, bandwidth=...'"),
    ("H100(memory=1 GB, capacity=2 GB)", "'capacity' is given twice"),
]


@pytest.mark.parametrize(("text", "said"), WRONG_BOARDS, ids=[text for text, _ in WRONG_BOARDS])
def test_what_is_wrong_in_a_board_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        gpus.find(text)
    assert "\n" not in str(caught.value)
