"""``--config`` and ``--save-config`` of simulate, compare and memory, and models as their subject."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import triosim
from triosim.cli import run
from triosim.trace.formats import read_trace

TRACE = Path(__file__).parents[2] / "examples" / "traces" / "vgg13_a100_fake.json.gz"
MODEL = ("llama3.2-1b", "--layers", "2", "--seq", "256")


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    captured = capsys.readouterr()
    return captured.out, " ".join(captured.err.split())


def test_a_result_runs_again_to_the_same_result_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "trace.json.gz").write_bytes(TRACE.read_bytes())
    (here / "box.yaml").write_text("topology: switch\ngpus: 4\nbandwidth: 100 GB/s\nlatency: 1 us\n")
    monkeypatch.chdir(here)
    options = ["-p", "dp=2,pp=2", "-t", "box.yaml", "--micro-batches", "4", "--schedule", "1f1b"]
    options += [
        "--bucket-size",
        "10 MiB",
        "--slow-gpus",
        "3=1.5",
        "--host-overhead",
        "5 us",
        "--option",
        "stages=balanced",
    ]
    assert run(["simulate", "trace.json.gz", *options, "-q", "-o", "result.json", "--save-config", "run.yaml"]) == 0
    monkeypatch.chdir(there)
    for config in ("result.json", "run.yaml"):
        assert run(["simulate", "--config", str(here / config), "-q", "-o", "again.json"]) == 0
        first, again = (json.loads(path.read_text()) for path in (here / "result.json", there / "again.json"))
        assert first == again


def test_the_command_line_comes_before_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"trace: {TRACE}\nparallel: ddp\ngpus: 4\nbatch_size: 64\n")
    assert run(["simulate", "--config", str(file), "-n", "2", "--format", "json"]) == 0
    result = json.loads(lines(capsys)[0])
    assert (len(result["ranks"]), result["global_batch_size"]) == (2, 128)


def test_compare_and_memory_read_a_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"trace: {TRACE}\nparallel: ddp\ngpus: 2\niterations: 2\n")
    assert run(["compare", "--config", str(file), "--format", "json"]) == 0
    out, err = lines(capsys)
    assert json.loads(out)["gpus"] == 2
    assert err == f"triosim: note: {file}: parallel, iterations have no effect in compare"
    assert run(["memory", "--config", str(file), "--format", "json"]) == 0
    assert json.loads(lines(capsys)[0])["parallel"] == "ddp=2"


def test_a_command_without_a_subject_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text("gpus: 2\n")
    assert run(["simulate", "--config", str(tmp_path / "run.yaml")]) == 2
    assert lines(capsys)[1] == "triosim: error: Missing argument 'TRACE'; see 'triosim simulate --help'"
    assert run(["calibrate", "missing"]) == 2
    assert lines(capsys)[1] == "triosim: error: Missing argument 'TRACE'; see 'triosim calibrate missing --help'"


def test_a_model_is_described_for_the_samples_of_a_micro_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *MODEL, "--micro-batch-size", "2", "-p", "pp=2", "--format", "json"]) == 0
    result = json.loads(lines(capsys)[0])
    assert result["inputs"]["trace"]["batch_size"] == 2
    assert result["global_batch_size"] == 4  # two micro-batches, as many as stages
    assert not any("predicted for batch size" in note for note in result["notes"])
    assert run(["simulate", *MODEL, "-b", "8", "--micro-batches", "4", "--format", "json"]) == 0
    result = json.loads(lines(capsys)[0])
    assert (result["inputs"]["trace"]["batch_size"], result["global_batch_size"]) == (2, 8)


def test_a_described_step_is_that_of_describe(tmp_path: Path) -> None:
    trace = triosim.describe("llama3.2-1b", layers=2, sequence=256, batch=2)
    described = triosim.simulate("llama3.2-1b", "ddp", gpus=2, layers=2, seq=256, micro_batch_size=2)
    assert described.step_time_s == triosim.simulate(trace, "ddp", gpus=2).step_time_s


def test_compare_and_memory_take_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", *MODEL, "-n", "2", "--format", "json"]) == 0
    assert all(
        "step_time_s" in one for one in json.loads(lines(capsys)[0])["runs"] if one["label"] != "pp=2 --micro-batches 8"
    )
    for options in ((), ("-p", "fsdp=2")):
        assert run(["memory", *MODEL, *options, "--format", "json"]) == 0
        assert "llama3.2-1b" in lines(capsys)[0]


def test_a_file_comes_before_a_model_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gpt2").write_bytes(TRACE.read_bytes())
    assert run(["simulate", "gpt2", "--seq", "64", "--format", "json"]) == 0
    result = json.loads(lines(capsys)[0])
    assert result["inputs"]["trace"]["model"] == "vgg13"
    assert "--seq has no effect without a described model" in result["notes"]


def test_a_config_of_transformers_is_a_subject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 100, **sizes}))
    for subject in (config, tmp_path):
        assert run(["simulate", str(subject), "--seq", "16", "-p", "dp=2", "--format", "json"]) == 0
        assert json.loads(lines(capsys)[0])["inputs"]["trace"]["times"].startswith("predicted")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["simulate", "lama3-8b"],
            "lama3-8b: there is no such file or directory, and no model of this name; did you mean 'llama3-8b'?",
        ),
        (["simulate", "gpt2(layers=2"], "gpt2(layers=2: a parenthesis is not closed; end it in ')'"),
        (
            ["simulate", str(TRACE), "--host-overhead", "5"],
            "5 has no unit, and would be seconds; write for example '5 us'",
        ),
        (["simulate", "missing.json"], "missing.json: there is no such file or directory"),
        (["compare", "runs/llama3-8b", "-n", "2"], "runs/llama3-8b: there is no such file or directory"),
        (["simulate", *MODEL, "--dtype", "5"], "--dtype: unknown dtype '5'; known: bfloat16, float16, float32"),
        (["simulate", str(TRACE), "--dtype", "fp17"], "--dtype: unknown dtype 'fp17'; known: bfloat16, float16"),
        (["memory", str(TRACE), "--optimizer", "adam"], "--optimizer: 'adam' is not known; did you mean 'adamw'?"),
        (["simulate", *MODEL, "--precision", "mxed"], "--precision: 'mxed' is not known; did you mean 'mixed'?"),
        (
            ["simulate", *MODEL, "-b", "8", "--micro-batch-size", "3"],
            "--micro-batch-size: a batch of 8 does not consist of whole micro-batches of 3",
        ),
        (
            ["simulate", str(TRACE), "-b", "8", "--micro-batches", "2", "--micro-batch-size", "2"],
            "a batch of 8 does not consist of 2 micro-batches of 2",
        ),
        (
            ["compare", str(TRACE), "-n", "2", "--option", "prefech=2"],
            "--option prefech: no part of this run takes 'prefech'; did you mean 'prefetch'?",
        ),
        (["simulate", "--config", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert said in lines(capsys)[1]


def test_compare_refuses_a_wrong_option_before_it_runs_a_strategy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from triosim.comparison import strategies

    monkeypatch.setattr(strategies, "simulate_config", lambda *_: pytest.fail("a strategy ran"))
    for option in (["--option", "prefetch=x"], ["--bucket-size", "x"], ["--schedule", "x"], ["--option", "y=1"]):
        assert run(["compare", str(TRACE), "-n", "2", *option]) == 2
        assert lines(capsys)[1].startswith("triosim: error: ")


def test_a_network_declares_its_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Path(__file__).parents[2] / "examples" / "plugins" / "alpha_beta_network.py"
    arguments = ["simulate", str(TRACE), "-p", "ddp", "-n", "2", "--network", f"{plugin}:AlphaBetaNetwork"]
    assert run([*arguments, "--option", "alpha=5 us", "-q"]) == 0
    assert run([*arguments, "--option", "alpha=soon"]) == 2
    assert "--option alpha: 'soon' is not a quantity" in lines(capsys)[1]


def test_a_folder_called_like_a_model_comes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gpt2"
    folder.mkdir()
    for command in (["simulate"], ["memory"], ["compare", "-n", "2"], ["describe"], ["show"]):
        assert run([command[0], "gpt2", *command[1:]]) == 2
        said = "gpt2: is a folder without a trace or a config.json, which hides the model 'gpt2'; rename it"
        assert said in " ".join(capsys.readouterr().err.split())
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2}')
    for command in (["show"], ["simulate"], ["describe", "--seq", "8", "-o", "t.json"]):
        assert run([command[0], "gpt2", *command[1:]]) == 0
    assert sum(one.numel for one in read_trace("t.json").parameters.values()) == 1_653_760


def test_a_folder_that_hid_a_model_hides_it_no_more_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found of a name is kept with the folder that it was found in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert run(["simulate", "gpt2", "--layers", "1", "-q"]) == 2
    (tmp_path / "gpt2").rmdir()
    assert run(["simulate", "gpt2", "--layers", "1", "-q"]) == 0


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration and plug-ins, in which nothing may be lost."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"trace: {TRACE}\nparallel: ddp\ngpus: 2\n")
    (tmp_path / "mine.py").write_text("class Mine:\n    def write(self, result, path): ...\n")
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "--config", "run.yaml", "-o", "run.yaml"),
        ("simulate", "--config", "run.yaml", "--save-config", "run.yaml"),
        ("compare", "--config", "run.yaml", "--save-config", "./run.yaml"),
        ("memory", "--config", "run.yaml", "--save-config", "run.yaml"),
        ("memory", "--config", "run.yaml", "--schedule", "mine.py:Mine", "--save-config", "mine.py"),
        ("compare", "--config", "run.yaml", "--network", "mine.py:Mine", "--save-config", "mine.py"),
        ("simulate", "--config", "run.yaml", "--write", "mine.py:Mine=mine.py"),
        ("simulate", "--config", "run.yaml", "-p", "dp=2,mine.py:Mine=2", "-o", "mine.py"),
        *(
            ("simulate", "--config", "run.yaml", option, "mine.py:Mine", "-o", "mine.py")
            for option in ("-p", "--schedule", "--network", "--collective", "--compute-model")
        ),
    ],
)
def test_no_output_replaces_a_file_that_is_read(
    arguments: tuple[str, ...], small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file.name: file.read_bytes() for file in small.iterdir()}
    assert run([*arguments]) == 2
    assert "is an input of this command, and would be overwritten" in lines(capsys)[1]
    assert {file.name: file.read_bytes() for file in small.iterdir()} == before


@pytest.mark.parametrize("command", ["simulate", "compare", "memory"])
def test_the_configuration_of_a_run_that_cannot_be_is_not_saved(command: str, small: Path) -> None:
    assert (
        run([command, "--config", "run.yaml", "-b", "7", "--micro-batch-size", "5", "--save-config", "new.yaml"]) == 2
    )
    assert not (small / "new.yaml").exists()


def test_the_options_that_are_known_are_those_that_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", str(TRACE), "-n", "2", "--option", "nope=1", "--network", "analytical"]) == 2
    said = lines(capsys)[1]
    assert "no part of this run takes 'nope'" in said
    assert not {"env", "topology", "record", "algorithm", "form"} & {*said.replace(",", "").split()}


def test_compare_writes_reports_of_a_comparison(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "--config", "run.yaml", "-q", "--write", "comparison-html=all.html"]) == 0
    assert (small / "all.html").read_text().startswith("<!doctype html>")
    assert run(["compare", "--config", "run.yaml", "--write", "csv=all.csv"]) == 2
    assert "the report 'csv' is of a result, not of a comparison" in lines(capsys)[1]


@pytest.mark.parametrize("command", ["simulate", "compare", "memory"])
def test_a_configuration_is_saved_under_a_name_that_says_what_it_is(
    command: str, small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--config", "run.yaml", "--save-config", "run.txt"]) == 2
    assert "--save-config run.txt: does not name a configuration; end it in .yaml, .yml or .json" in lines(capsys)[1]
    for name in ("new.yaml", "new.yml", "new.json"):
        assert run([command, "--config", "run.yaml", "-q", "--save-config", name]) == 0
        assert (small / name).stat().st_size > 0


def test_a_configuration_is_saved_when_all_other_outputs_are(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small / "broken.py").write_text("class Broken:\n    def write(self, result, path):\n        raise ValueError(1)\n")
    arguments = ["--write", "broken.py:Broken=out.txt", "--save-config", "new.yaml"]
    assert run(["simulate", "--config", "run.yaml", "-q", *arguments]) == 2
    assert not (small / "new.yaml").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "conditions:\n  slow_gpus: 3=1.5\n  stragglers: foo\n",
            ":3: conditions: stragglers: distribution: unknown value",
        ),
        ("conditions:\n  events: [gpu=3]\n", ":2: conditions: events: 'gpu=3' is not an event"),
        ("parallel: fsdp=4\noptions:\n  prefetch: x\n", ":3: options: prefetch: 'x' is not a whole number"),
        ("options:\n\n  prefech: 2\n", ":3: options: prefech: no part of this run takes 'prefech'"),
    ],
)
def test_a_wrong_value_in_a_file_is_named_with_its_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert (
        run(["simulate", str(TRACE), "--config", str(file), "-n", "4"] + ([] if "fsdp" in text else ["-p", "ddp"])) == 2
    )
    assert lines(capsys)[1].startswith(f"triosim: error: {file}{said}")


def test_a_wrong_value_on_the_command_line_is_not_that_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("conditions: {stragglers: uniform}\noptions: {prefetch: 2}\nparallel: fsdp=4\n")
    for option, said in (
        (["--stragglers", "foo"], "--stragglers: "),
        (["--option", "prefetch=x"], "--option prefetch: "),
    ):
        assert run(["simulate", str(TRACE), "--config", str(file), *option]) == 2
        assert lines(capsys)[1].startswith(f"triosim: error: {said}")
