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

REPORTED = {
    "NVIDIA H100 80GB HBM3": "H100-SXM",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA H200": "H200",
    "NVIDIA B200": "B200",
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


def test_no_name_stands_for_two_gpus() -> None:
    names = [gpus._key(name) for gpu in gpus.catalogue() for name in {gpus._key(n) for n in (gpu.name, *gpu.aliases)}]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("gpu", gpus.catalogue(), ids=lambda gpu: gpu.name)
def test_an_entry_is_complete_and_narrower_formats_are_no_slower(gpu: gpus.Gpu) -> None:
    assert gpu.source
    assert min(gpu.bandwidth, gpu.capacity, gpu.l2_bytes, gpu.sms, gpu.clock_hz, gpu.pcie_bandwidth, gpu.tdp_watts) > 0
    rates = [gpu.rate(dtype) for dtype in ("float64", "float32", "tf32", "float16", "float8_e4m3fn")]
    assert gpu.architecture == "x86" or rates == sorted(rates)


def test_ordinary_cores_do_two_operations_a_cycle() -> None:
    """FP32 peak = processors x cores x 2 x clock, of 64 cores a processor on GV100 and GA100, and 128 on GH100."""
    for name, cores in (("V100", 64), ("A100", 64), ("H100", 128), ("RTX 4090", 128)):
        gpu = gpus.find(name)
        assert gpu.flops["float32"] == pytest.approx(gpu.sms * cores * 2 * gpu.clock_hz, rel=0.01)


def test_what_a_gpu_has_no_units_for_runs_in_the_next_wider_format() -> None:
    assert gpus.find("V100").rate("bfloat16") == gpus.find("V100").rate("float32")
    assert gpus.find("A100").rate("float8_e4m3fn") == gpus.find("A100").rate("float16")
    assert gpus.find("T4").rate("tf32") == gpus.find("T4").rate("float32")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"no GPU 'H10'.*did you mean 'H100'"):
        gpus.find("H10")
    with pytest.raises(OptionError, match="known: A100-PCIe-40GB"):
        gpus.find("abacus")


def test_all_devices_of_the_measured_tables_are_in_the_catalogue(data_dir: Path) -> None:
    with gzip.open(data_dir / "operators" / "linear_fp32_multi_gpu.csv.gz", "rt") as file:
        devices = {row["device"] for row in csv.DictReader(file)}
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
    assert changed == {"name", "aliases", "source", "bandwidth"}
    assert gpu.bandwidth == 8e12


def test_what_is_printed_as_json_is_a_gpu_file_of_another_name(tmp_path: Path) -> None:
    from triosim.reports.gpu_table import as_json

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
    ("sms: many", "mine.yaml:1: sms: 'many' is not right here"),
    ("like: H10\n", "mine.yaml:1: like: there is no GPU 'H10'"),
    ("name: x\nflops: {bfloat16: 3}\nbandwidth: 3\ncapacity: 3", "mine.yaml:2: flops: 'float32' is missing"),
    ("name: x\nflops: {float32: 3}\ncapacity: 3", "'bandwidth' is missing; write for example 'bandwidth: 3.35 TB/s'"),
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
