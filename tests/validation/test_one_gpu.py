"""Steps of one GPU: how their table is read, and that those of TorchSim's are predicted within what is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from triosim.errors import TriosimError
from validation.steps import formats, one_gpu

HEADER = "MODEL,BATCH SIZE,SEQ LENGTH IMG SIZE,PRECISION,ACTIVATION CHECKPOINTING,ACTUAL (MS)"


def table(folder: Path, line: str) -> Path:
    path = folder / "t.csv"
    path.write_text(f"{HEADER}\n{line}\n")
    return path


def test_words_and_pixels_are_told_apart(tmp_path: Path) -> None:
    form, rows = formats.read(table(tmp_path, "CLIP,8,20/336,MP,FALSE,100"))
    assert form.name == "one-gpu"
    assert str(rows[0].case).endswith(
        "clip-vit-l-14-336 --gpu H100-SXM --batch-size 8 --seq 20 --dtype fp16 --precision mixed"
    )
    assert "--seq" not in str(formats.read(table(tmp_path, "VIT,8,224,HP,TRUE,100"))[1][0].case)
    assert "--seq 512" in str(formats.read(table(tmp_path, "LLAMA,8,512,HP,TRUE,100"))[1][0].case)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("BERT,8,512,HP,TRUE,100", "'MODEL' is 'BERT'"),
        ("CLIP,8,20,HP,TRUE,100", "CLIP reads images of 336 pixels"),
        ("VIT,8,336,HP,TRUE,100", "VIT reads images of 224 pixels"),
        ("LLAMA,8,long,HP,TRUE,100", "give the words of a sample"),
        ("LLAMA,8,512,XP,TRUE,100", "'PRECISION' is 'XP'"),
        ("LLAMA,8,512,HP,MAYBE,100", "'ACTIVATION CHECKPOINTING' is 'MAYBE'"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(TriosimError, match=r"t\.csv:2") as caught:
        formats.read(table(tmp_path, line))
    assert said in str(caught.value)


def test_the_published_steps_are_within_what_is_asked_for() -> None:
    """One of each model: in both precisions, with and without checkpoints."""
    form = one_gpu.OneGpu()
    rows = form.built_in()
    assert len(rows) == 14
    chosen = [rows[place] for place in (1, 4, 9, 12)]
    assert {row.model for row in chosen} == {row.model for row in rows}
    errors = [abs(form.predicted(row).value / row.measured - 1) for row in chosen]
    assert sum(errors) / len(errors) < form.asked["step time"]
