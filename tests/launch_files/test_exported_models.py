"""What an exported file says where the framework would train another model than the one that was simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim import cli

COMMON = ("-p", "fsdp=2", "--seq", "128", "--micro-batch-size", "1", "--gpu", "H100", "-q")


def exported(folder: Path, framework: str, *words: str) -> str:
    assert cli.run(["simulate", *words, *COMMON, "--export", str(folder / "out"), "--for", framework]) == 0
    names = {"torchtitan": "torchtitan.toml", "megatron": "megatron.sh", "deepspeed": "deepspeed.txt"}
    return (folder / "out" / names[framework]).read_text()


@pytest.mark.parametrize("words", [("llama3-8b", "--layers", "2"), ("llama3-8b(layers=2)",)])
def test_torchtitan_trains_its_own_flavor_whatever_was_cut(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = exported(tmp_path, "torchtitan", *words)
    said = (
        "the model: simulated was layers 2, this has 32 (torchtitan's llama3 8B); add a flavor, and name it in [model]"
    )
    assert f'# {said}\n[model]\nname = "llama3"\nflavor = "8B"\n' in text
    assert f"not in the files of torchtitan: {said}" in capsys.readouterr().err
    assert "layers: simulated" not in text
    like = ["--like", str(tmp_path / "out" / "torchtitan.toml"), "--gpus", "2", "--gpu", "H100", "-q"]
    assert cli.run(["simulate", *words, *like]) == 0
    other = (tmp_path / "out" / "torchtitan.toml").read_text().replace("8B", "70B")
    (tmp_path / "out" / "torchtitan.toml").write_text(other)
    assert cli.run(["simulate", *words, *like]) == 2
    assert "model.flavor: '70B' is not llama3-8b" in capsys.readouterr().err


def test_a_model_that_torchtitan_has_not(tmp_path: Path) -> None:
    text = exported(tmp_path, "torchtitan", "tinyllama-1.1b(layers=2)")
    assert "#   the model: torchtitan has no tinyllama-1.1b(layers=2), and trains its llama3 debugmodel" in text
    assert "\n[model]" not in text


def test_a_model_that_it_has_needs_no_words(tmp_path: Path) -> None:
    assert "the model:" not in exported(tmp_path, "torchtitan", "qwen3-0.6b")


@pytest.mark.parametrize("framework", ["megatron", "deepspeed"])
def test_others_train_what_they_are_given(framework: str, tmp_path: Path) -> None:
    text = exported(tmp_path, framework, "llama3-8b", "--layers", "2")
    assert "layers: simulated" not in text
    assert ("--num-layers 2\n" in text) == (framework == "megatron")
