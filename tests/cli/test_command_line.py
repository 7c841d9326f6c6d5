"""The command line: what it prints, what it writes, and that whatever is wrong is one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from triosim import cli, save_trace
from triosim.trace import Category, Operator, Phase, Tensor, Trace

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process; returns exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("TRIOSIM_DEBUG", raising=False)

    def call(*arguments: object) -> tuple[int, str, str]:
        status = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def small_trace() -> Trace:
    """Two linear layers, of batch 8, with their backward pass and optimizer."""
    operators: list[Operator] = []

    def tensor(number: int, shape: tuple[int, ...], category: Category, parameter: int | None = None) -> Tensor:
        return Tensor(number, shape, "float32", category, number, parameter)

    def add(
        name: str,
        phase: Phase,
        layer: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        ms: float,
        of: int | None = None,
    ) -> int:
        operators.append(
            Operator(len(operators), name, phase, layer, tuple(inputs), tuple(outputs), ms * 1e-3, forward=of)
        )
        return len(operators) - 1

    x, y, z = (tensor(i, (8, 1024), kind) for i, kind in ((0, "input"), (1, "activation"), (2, "output")))  # type: ignore[arg-type]
    w, v = (tensor(i, (1024, 1024), "parameter") for i in (3, 4))
    dw, dv = (tensor(i + 2, (1024, 1024), "gradient", i) for i in (3, 4))
    dz, dy = (tensor(i, (8, 1024), "gradient") for i in (7, 8))
    first = add("aten::mm", "forward", "first", [x, w], [y], 1)
    second = add("aten::mm", "forward", "second", [y, v], [z], 1)
    add("aten::mm", "backward", "second", [dz, y], [dv], 1, second)
    add("aten::mm", "backward", "second", [dz, v], [dy], 1, second)
    add("aten::mm", "backward", "first", [dy, x], [dw], 1, first)
    add("aten::add_", "optimizer", "optimizer", [w, dw], [w], 0.5)
    add("aten::add_", "optimizer", "optimizer", [v, dv], [v], 0.5)
    return Trace(tuple(operators), 8, "two-layers", "NVIDIA H100")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    save_trace(small_trace(), path)
    return path


def one_line(text: str) -> str:
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert text.startswith("triosim: ")
    return text


# ---- what works ------------------------------------------------------------------------------------------------------


def test_a_simulation_prints_tables_of_80_columns(run: Run, trace: Path) -> None:
    status, out, err = run("simulate", trace, "--parallel", "ddp", "--gpus", 4, "--topology", "dgx-h100")
    assert (status, err) == (0, "")
    for word in ("two-layers", "step time", "Time per step, by rank", "all_reduce", "utilisation"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_all_that_is_printed_and_the_same_as_the_file(run: Run, trace: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    status, out, err = run("simulate", trace, "-p", "ddp", "-n", 2, "-t", "dgx-h100", "--format", "json", "-o", output)
    assert (status, err) == (0, "")
    assert json.loads(out)["schema"] == "triosim-result/1"
    assert out == output.read_text(encoding="utf-8")


def test_one_run_gives_the_same_bytes_twice(run: Run, trace: Path) -> None:
    command = ("simulate", trace, "-p", "dp", "-n", 4, "-t", "dgx-h100", "--format", "json")
    assert run(*command) == run(*command)


def test_inputs_hold_the_options_and_the_hash_of_the_trace(run: Run, trace: Path) -> None:
    import hashlib

    _, out, _ = run("simulate", trace, "--gpus", 1, "--format", "json")
    inputs = json.loads(out)["inputs"]
    assert inputs["files"]["trace"] == {"path": str(trace), "sha256": hashlib.sha256(trace.read_bytes()).hexdigest()}
    assert inputs["config"]["parallel"] == "single"


def test_one_gpu_takes_as_long_as_its_operators(run: Run, trace: Path) -> None:
    _, out, _ = run("simulate", trace, "--gpus", 1, "--format", "json")
    assert json.loads(out)["step_time_s"] == pytest.approx(6e-3, rel=1e-12)


def test_an_option_without_effect_is_noted(run: Run, trace: Path) -> None:
    _, out, _ = run("simulate", trace, "-p", "ddp", "-n", 2, "--tp-style", "megatron", "--bucket-size", "1 MB")
    assert "--tp-style has no effect without tp" in out
    assert "--bucket-size" not in out


def test_what_only_a_backward_pass_reads_is_noted_in_inference(run: Run, trace: Path) -> None:
    options = ("-p", "ddp", "-n", 2, "--bucket-size", "1 MB", "--format", "json")
    _, out, _ = run("simulate", trace, *options, "--recompute", "full", "--inference")
    noted = [note for note in json.loads(out)["notes"] if "has no effect" in note]
    assert sorted(noted) == ["--bucket-size has no effect in inference", "--recompute has no effect in inference"]
    _, out, _ = run("simulate", trace, *options)
    assert "has no effect" not in out


def test_gradients_are_reduced_in_a_dtype_as_people_write_it(run: Run, trace: Path) -> None:
    sent = []
    for dtype in ("bf16", "bfloat16", "fp32"):
        _, out, _ = run("simulate", trace, "-p", "ddp", "-n", 2, "--gradient-dtype", dtype, "--format", "json")
        sent.append(sum(one["bytes"] * one["count"] for one in json.loads(out)["collectives"]))
    assert 2 * sent[0] == 2 * sent[1] == sent[2] > 0


def test_one_gpu_copies_its_input_from_the_host_of_the_usual_topology(run: Run, trace: Path) -> None:
    status, out, _ = run("simulate", trace, "--copy-input", "--format", "json")
    assert status == 0
    assert json.loads(out)["step_time_s"] > 6e-3


def test_inference_runs_the_forward_pass_alone(run: Run, trace: Path) -> None:
    _, out, _ = run("simulate", trace, "--gpus", 1, "--inference", "--format", "json")
    assert json.loads(out)["step_time_s"] == pytest.approx(2e-3, rel=1e-12)


def test_every_output_is_written_and_nothing_else(run: Run, trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "out"
    folder.mkdir()
    files = {"--output": "r.json.gz", "--csv": "r.csv", "--timeline": "t.json.gz", "--plot": "p.png"}
    options = [part for option, name in files.items() for part in (option, folder / name)]
    status, out, err = run("simulate", trace, "-p", "ddp", "-n", 2, "-t", "dgx-h100", "--quiet", *options)
    assert (status, out, err) == (0, "", "")
    assert {path.name for path in folder.iterdir()} == set(files.values())
    assert json.loads(gzip.decompress((folder / "r.json.gz").read_bytes()))["schema"] == "triosim-result/1"
    events = json.loads(gzip.decompress((folder / "t.json.gz").read_bytes()))["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "M", "C"}
    assert len(list(csv.reader(io.StringIO((folder / "r.csv").read_text(encoding="utf-8"))))) > 20
    assert (folder / "p.png").read_bytes().startswith(b"\x89PNG")


def test_compare_shows_the_strategies_with_what_cannot_run(run: Run, trace: Path) -> None:
    status, out, err = run("compare", trace, "--gpus", 4, "--topology", "dgx-h100")
    assert (status, err) == (0, "")
    for word in ("single", "ddp", "fsdp", "zero1", "--tp-style gather", "samples/s", "speed-up"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80
    assert "cannot run" in out, "two layers do not make four stages"


def test_compare_as_json_and_as_a_picture(run: Run, trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "strategies.png"
    status, out, err = run("compare", trace, "--gpus", 2, "-t", "dgx-h100", "--format", "json", "--plot", picture)
    assert (status, err) == (0, "")
    runs = {one["label"]: one for one in json.loads(out)["runs"]}
    assert runs["single"]["speed_up"] == 1
    assert runs["single"]["step_time_s"] == pytest.approx(6e-3)
    assert 1 < runs["ddp=2"]["speed_up"] <= 2
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_convert_and_show(run: Run, trace: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.json.gz"
    status, out, said = run("convert", trace, copy)
    assert (status, out) == (0, "")
    assert re.fullmatch(rf"triosim: trace of .+, [\d,]+ operators, written to {re.escape(str(copy))}\n", said)
    status, out, err = run("show", copy)
    assert (status, err) == (0, "")
    for word in ("two-layers", "NVIDIA H100", "aten::mm", "forward", "parameter", "2,097,152 elements"):
        assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_topology_is_shown_and_drawn(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "t.png"
    status, out, err = run("topology", "dgx-h100", "--output", picture)
    assert (status, err) == (0, "")
    assert "8 GPUs" in out
    assert "450 GB/s" in out
    assert "bisection bandwidth 1.80 TB/s" in out
    assert max(map(len, out.splitlines())) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_gpus_are_listed_and_shown(run: Run) -> None:
    status, out, err = run("gpus")
    assert (status, err) == (0, "")
    assert {"H100-SXM", "MI300X", "RTX-4090"} <= set(out.split())
    assert "NVIDIA A100-SXM4-40GB" in run("gpus", "a100-sxm4-40gb")[1]
    assert json.loads(run("gpus", "H200", "--format", "json")[1])["bandwidth"] == 4.8e12
    assert len(json.loads(run("gpus", "--format", "json")[1])) > 20
    assert run("gpus", "H10")[0] == 2


def test_another_gpu_is_predicted_with_its_interval(run: Run, trace: Path) -> None:
    found = json.loads(run("simulate", trace, "--gpu", "A100", "--compute-model", "auto", "--format", "json")[1])
    low, high = found["step_time_interval_s"]
    assert low < found["step_time_s"] < high
    assert found["inputs"]["trace"]["gpu"] == "A100-SXM-80GB"
    assert run("compare", trace, "--gpus", 2, "--gpu", "A100")[1].startswith("two-layers on 2 x A100-SXM-80GB")


def test_plugins_lists_what_can_be_named(run: Run) -> None:
    status, out, _ = run("plugins")
    assert status == 0
    for name in ("packet", "ddp", "ring", "linear", "pytorch"):
        assert name in out


def test_version_and_help(run: Run) -> None:
    assert run("--version")[1].startswith("triosim 0.")
    status, out, _ = run("simulate", "--help")
    assert status == 0
    assert "Examples" in out
    assert "triosim simulate trace.json --parallel ddp" in out
    assert max(map(len, out.splitlines())) <= 80


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    status, out, _ = run()
    assert status == 0
    assert "compare" in out


def test_shell_completion_knows_parallelisms_and_topologies() -> None:
    from triosim.cli import options

    parallelisms = options.completing(options.COMPLETED["parallel"])
    assert parallelisms("d") == ["dp", "ddp"]
    assert parallelisms("z") == ["zero1", "zero2"]
    assert {"dgx-h100", "ring"} <= set(options.COMPLETED["topology"]())
    assert {"selective", "checkpoint"} <= set(options.COMPLETED["recompute"]())
    assert all(options.COMPLETED[name]() for name in options.COMPLETED)


# ---- what is wrong ---------------------------------------------------------------------------------------------------

WRONG: list[tuple[list[str], str]] = [
    (["--parallel", "dpp"], "did you mean '"),
    (["--gpus", "0"], "0"),
    (["--gpus", "-3"], "-3"),
    (["--gpus", "many"], "'many' is not a whole number"),
    (["-p", "ddp", "-n", "9", "-t", "ring(8, bandwidth=1 GB/s)"], "9"),
    (["-p", "pp", "-n", "8"], "stage"),
    (["-n", "4"], "--gpus: 'single' is one GPU, not 4; give --parallel too"),
    (["-n", "1", "--batch-size", "-1"], "-1"),
    (["-p", "ddp", "-n", "3", "--global-batch-size", "8"], "8"),
    (["--topology", "dgx-h10"], "dgx-h100"),
    (["--topology", "none.yaml"], "none.yaml"),
    (["--network", "paket"], "did you mean 'packet'?"),
    (["--network", "none.py:Network"], "none.py"),
    (["--collective", "rings"], "did you mean 'ring'?"),
    (["--collective-form", "step"], "did you mean 'steps'?"),
    (["--compute-model", "liner"], "did you mean 'linear'?"),
    (["--gpu", "H10"], "did you mean 'H100'?"),
    (["--gpu", "none.yaml"], "none.yaml"),
    (["--tp-style", "megatrn"], "did you mean 'megatron'?"),
    (["--format", "jsn"], "did you mean 'json'?"),
    (["--option", "x"], "write key=value"),
    (["--option", "x=1"], "x"),
    (["--bucket-size", "25 MX"], "--bucket-size: unknown unit 'MX'"),
    (["--host-overhead", "soon"], "--host-overhead: 'soon'"),
    (["--operator-times", "none.json"], "none.json"),
    (["--output", "none/result.json"], "none"),
    (["--plot", "picture.xls"], "picture.xls"),
    (["--output", "same", "--csv", "same"], "two outputs"),
    (["--iterations", "0"], "0"),
    (["--nonsense"], "No such option: --nonsense"),
    (["--gpus"], "--gpus"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[" ".join(options) for options, _ in WRONG])
def test_what_is_wrong_is_said_in_one_line_with_exit_status_2(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(trace.parent)
    status, out, err = run("simulate", trace, *options)
    assert (status, out) == (2, "")
    assert said in one_line(err)
    assert "internal error" not in err
    assert [path.name for path in trace.parent.iterdir()] == ["trace.json"]


def test_an_output_that_is_an_input_is_refused(run: Run, trace: Path) -> None:
    before = trace.read_bytes()
    for command in (["simulate", trace, "-o", trace], ["convert", trace, trace]):
        status, _, err = run(*command)
        assert status == 2
        assert "is an input of this command" in one_line(err)
    assert trace.read_bytes() == before


def test_a_topology_without_gpus_is_named(run: Run, trace: Path, tmp_path: Path) -> None:
    (tmp_path / "flows.yaml").write_text("links:\n  - {from: a, to: b, bandwidth: 1 GB/s}\n")
    status, _, err = run("simulate", trace, "-p", "ddp", "-t", tmp_path / "flows.yaml")
    assert status == 2
    assert "flows.yaml: the topology has no GPUs" in one_line(err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_behind_standard_output_is_an_error_in_one_line(trace: Path) -> None:
    script = "import sys; from triosim.cli import run; sys.exit(run(sys.argv[1:]))"
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", script, "show", str(trace)]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 2
    assert "standard output: could not be written" in one_line(found.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize(
    ("arguments", "redirected", "status"),
    [
        ("show {}", ">&-", 0),
        ("gpus", "2>&- >/dev/null", 0),
        ("show nothing", "2>&-", 2),
        ("show nothing", "2>/dev/full", 2),
    ],
)
def test_an_output_that_is_closed_or_full_changes_no_exit_status(
    trace: Path, arguments: str, redirected: str, status: int
) -> None:
    command = f"{sys.executable} -m triosim {arguments.format(trace)} {redirected}"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (status, "", "")


def test_an_output_that_is_to_go_to_a_closed_standard_output_is_refused(trace: Path) -> None:
    command = f"{sys.executable} -m triosim simulate {trace} -q -o - >&-"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (2, "triosim: error: standard output: is closed; name a file\n")


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"schema": "triosim-trace/99"}'])
def test_a_trace_that_is_none_is_named(run: Run, tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    for command in (
        ["simulate", path],
        ["show", path],
        ["compare", path, "-n", 2],
        ["convert", path, tmp_path / "o.json"],
    ):
        status, out, err = run(*command)
        assert (status, out) == (2, "")
        assert "broken.json" in one_line(err)
    assert [one.name for one in tmp_path.iterdir()] == ["broken.json"]


def test_an_unwritable_output_is_refused_before_the_simulation(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triosim.simulation

    monkeypatch.setattr(triosim.simulation, "simulate", lambda *_, **__: pytest.fail("the simulation was started"))
    for option in ("--output", "--csv", "--timeline", "--plot"):
        status, _, err = run("simulate", trace, option, trace.parent / "none" / "x.png")
        assert status == 2
        assert "does not exist" in one_line(err)


def test_a_word_that_is_no_command_is_answered_with_the_nearest(run: Run) -> None:
    status, _, err = run("simulat")
    assert status == 2
    assert "'simulate'" in one_line(err)


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_files_are_written_leaves_none_behind(
    run: Run, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triosim.reports.files import timeline

    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.setattr(timeline._EventWriter, "_names", interrupt)
    status, out, err = run(
        "simulate",
        trace,
        "-p",
        "ddp",
        "-n",
        2,
        "-t",
        "dgx-h100",
        "--timeline",
        folder / "t.json",
        "--csv",
        folder / "r.csv",
    )
    assert (status, out) == (130, "")
    assert "interrupted" in err
    assert [path.name for path in folder.iterdir()] == ["r.csv"], "what was whole stays, what was not is gone"


def test_a_mistake_of_ours_is_one_line_too_and_its_traceback_is_to_be_had(
    run: Run, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triosim.cli.showing import trace as show

    def broken(*_: object) -> None:
        raise AssertionError("2 is\nnot 3")

    monkeypatch.setattr(show, "read", broken)
    status, _, err = run("show", trace)
    assert status == 1
    assert "AssertionError: 2 is not 3" in one_line(err)
    monkeypatch.setenv("TRIOSIM_DEBUG", "1")
    with pytest.raises(AssertionError):
        run("show", trace)


def test_a_reader_that_leaves_is_no_error(trace: Path) -> None:
    script = "import sys; from triosim.cli import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "topology", "ring(2000, bandwidth=1 GB/s)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
    assert err == b""
    assert process.returncode == 1


def test_heavy_packages_are_not_imported_for_a_simulation(trace: Path) -> None:
    script = (
        "import sys; from triosim.cli import run; "
        "status = run(['simulate', sys.argv[1], '-p', 'ddp', '-n', '8', '-t', 'dgx-h100', '--quiet']); "
        "print(sorted({'torch', 'pandas', 'matplotlib', 'networkx', 'sklearn', 'numba', 'pydantic'} & set(sys.modules))); "
        "sys.exit(status)"
    )
    found = subprocess.run([sys.executable, "-c", script, str(trace)], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "[]\n", "")


def test_a_line_of_error_has_at_most_300_characters(run: Run) -> None:
    for arguments in (
        ["simulate", "a/" * 400],
        ["gpus", f"H100({'x=1, ' * 200})"],
        ["simulate", "gpt2", "--like", "y" * 900],
    ):
        status, _, err = run(*arguments)
        assert status == 2
        assert len(one_line(err).rstrip("\n")) <= 300


def test_a_name_that_is_too_long_for_a_file_is_one_line(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(f"trace: {'x' * 300}/a.json\n")
    status, _, err = run("memory", "--config", config)
    assert status == 2
    assert "longer than a name may be" in one_line(err)
