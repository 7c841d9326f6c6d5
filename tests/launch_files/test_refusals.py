"""What a launch file says wrong, or what is not simulated, ends in one line that names the file, the line and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim import cli
from triosim.config import RunConfig
from triosim.errors import OptionError
from triosim.launch_files.job import ModelSizes
from triosim.launch_files.reading import read_launch_file

MODEL = ModelSizes.of("llama3-8b", RunConfig.of())


def refused(folder: Path, name: str, text: str) -> str:
    """Return what is said of a file, without its folder."""
    (folder / name).write_text(text)
    with pytest.raises(OptionError) as said:
        read_launch_file(str(folder / name), MODEL)
    return str(said.value).replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[training]\nseqlen = 8\n", "job.toml:2: training.seqlen: is no key of torchtitan that triosim knows; did you mean "
         "'training.seq_len'?"),
        ("[training]\nnew_thing = 8\n", "job.toml:2: training.new_thing: is no key of torchtitan that triosim knows; leave it "
         "out, or give --ignore-unknown"),
        ("[trainin]\nseq_len = 8\n", "job.toml:2: trainin.seq_len: is no key of torchtitan that triosim knows; did you mean "
         "'training.seq_len'?"),
        ("[training]\nseq_len = 'x'\n", "job.toml:2: training.seq_len: 'x' is not a whole number; give 1 or more"),
        ("[model]\nname='llama3'\nflavor = '70B'\n", "job.toml:3: model.flavor: '70B' is not llama3-8b, which is '8B'; name "
         "the file's model"),
        ("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = 'DualPipeV'\n", "job.toml:3: "
         "parallelism.pipeline_parallel_schedule: 'DualPipeV' is not simulated; known: 1F1B, GPipe, Interleaved1F1B"),
        ("[activation_checkpoint]\nmode = 'selective'\nselective_ac_option = 'ops'\n", "job.toml:3: "
         "activation_checkpoint.selective_ac_option: 'ops' is neither 'op' nor a number of layers; write 'op', or 2"),
        ("activation_checkpoint.mode = 'none'\n[parallelism]\ndisable_loss_parallel = true\n", "job.toml:3: "
         "parallelism.disable_loss_parallel: 'True' changes the step in a way that is not simulated; leave it out, or give "
         "--ignore-unknown"),
        ("[training\n", "job.toml:1: is not TOML: Expected ']' at the end of a table declaration"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_job_of_torchtitan(text: str, said: str, tmp_path: Path) -> None:
    assert refused(tmp_path, "job.toml", text) == said


def test_another_file_is_no_launch_file(tmp_path: Path) -> None:
    assert refused(tmp_path, "notes.md", "hello\n").startswith(
        "notes.md: is no launch file that triosim knows; give torch"
    )
    assert refused(tmp_path, "notes.txt", "hello\n").startswith(
        "notes.txt: starts no job that triosim knows; give a script"
    )
    assert refused(tmp_path, "run.yaml", "gpus: 8\n").startswith(
        "run.yaml: has no key of a framework that triosim knows"
    )


def test_a_key_that_changes_no_step_is_passed_over(tmp_path: Path) -> None:
    text = "activation_checkpoint.mode = 'none'\n[checkpoint]\nfolder = 'x'\n[training]\nmax_norm = 1.0\nseq_len = 64\n"
    (tmp_path / "job.toml").write_text(text)
    found = read_launch_file(str(tmp_path / "job.toml"), MODEL)
    assert found.options["seq"] == 64
    assert found.lines["training.seq_len"].endswith("job.toml:6: training.seq_len")


def test_what_is_ignored_is_listed(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[activation_checkpoint]\nmode = 'memory_budget'\n[parallelism]\nnew_key = 3\n")
    found = read_launch_file(str(tmp_path / "job.toml"), MODEL, ignore_unknown=True)
    assert [str(one).partition(": ")[2].partition(":")[0] for one in found.ignored] == [
        "parallelism.new_key",
        "activation_checkpoint.mode",
    ]
    assert "recompute" not in found.options


def run(*words: str) -> int:
    return cli.run(["simulate", "llama3-8b(layers=2)", "--gpu", "H100", "-q", *words])


def test_the_command_line_overrides_a_launch_file(tmp_path: Path) -> None:
    launch, config = str(tmp_path / "launch"), tmp_path / "run.yaml"
    step = ("--seq", "64", "--gradient-dtype", "fp32", "--stack", "compiled", "--micro-batch-size", "2")
    assert run("-p", "fsdp=4", *step, "--export", launch, "--for", "torchtitan") == 0
    like = ("--like", f"{launch}/torchtitan.toml", "--gpus", "8")
    assert run(*like, "-p", "fsdp=8", "--seq", "32", "--global-batch-size", "16", "--save-config", str(config)) == 0
    saved = config.read_text()
    assert "parallel: fsdp=8" in saved
    assert "seq: 32" in saved
    assert "micro_batch_size: 2" in saved


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--export", "out"), "--export: does not say for which framework; add --for"),
        (("--for", "torchtitan"), "--for: has no folder to write to; add --export DIR"),
        (
            ("--export", "out", "--for", "torchtita"),
            "--for: 'torchtita' is no framework that is written for; did you mean",
        ),
        (("--export", "a/b", "--for", "torchtitan"), "a/b: the folder 'a' does not exist; make it first"),
        (("--ignore-unknown",), "--ignore-unknown: has no effect without --like; leave it out"),
    ],
)
def test_options_that_cannot_be(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    assert capsys.readouterr().err.startswith(f"triosim: error: {said}")
    assert not list(tmp_path.iterdir())


def test_zero_2_beside_a_pipeline_is_refused(tmp_path: Path) -> None:
    """As ``PipelineEngine`` of DeepSpeed does."""
    zero = '"zero_optimization": {"stage": 2, "overlap_comm": true}'
    text = f'{{"train_micro_batch_size_per_gpu": 1, {zero}, "pipeline": {{"stages": 2}}}}'
    assert refused(tmp_path, "ds.json", text) == (
        "ds.json:1: zero_optimization.stage: DeepSpeed has no ZeRO-2 and 3 with a pipeline; write 0 or 1"
    )
