"""The log of torchtitan itself in a live run against the steps that were published with it, Llama 3.1 8B on 8 and 128 GPUs.

The rows are of a torchtitan of December 2024, which does not run with PyTorch's present versions. Two things in its step have
changed: its norm was written in operators (``scripts/torchtitan_of_2024.py`` puts that one back), and the loss was not compiled
with the model (pytorch/torchtitan#755). Both torchtitans are compared. ``python -m validation.live_torchtitan`` prints each,
where torchtitan is installed.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from validation.live_steps import BOARD, STEPS, Found, Published, judged, print_found, published
from validation.report import DataAbsent, Row

#: Minutes, with PyTorch and torchtitan: ``python -m validation`` runs this only where it is asked for.
TAKES_LONG = True

#: Words of the tokenizer and the texts.
WORDS = 2000
_OF_2024 = Path(__file__).resolve().parent / "scripts" / "torchtitan_of_2024.py"
_LOGGED = re.compile(r"memory: *([\d.]+)GiB.*?tps: ([\d,]+)")
_ESCAPES = re.compile(r"\x1b\[[\d;]*m")


def rows() -> list[Row]:
    if importlib.util.find_spec("torchtitan") is None:
        raise DataAbsent("torchtitan is not installed")
    return judged(list(compared(of_2024=True)), "torchtitan's log, with the norm and loss of its published rows")


def compared(*, of_2024: bool) -> Iterator[Found]:
    """Run each row that was not in float8, and yield what torchtitan logs last."""
    for row in published():
        tokens, memory = logged(row, of_2024=of_2024)
        yield Found(row.name, row.tokens, row.memory, tokens, memory)


def logged(row: Published, *, of_2024: bool) -> tuple[float, float]:
    """Run torchtitan, and return the last tokens a second and GiB that it logs."""
    module = [str(_OF_2024)] if of_2024 else ["-m", "torchtitan.train"]
    how = ["--compile.enable"] * row.compiled + ["--compile.components", "model"] * (row.compiled and of_2024)
    with tempfile.TemporaryDirectory(prefix="triosim-") as folder:
        write_assets(Path(folder))
        system = ["--gpu", BOARD, "--topology", f"dgx-h100(gpus={row.gpus})", "-q"]
        nodes = ["--nproc-per-node", "8", "--nnodes", str(row.gpus // 8)]
        launch = [sys.executable, "-m", "triosim", "run", *system, "--", "torchrun", *nodes, *module]
        said = _run([*launch, *_job(row), *how], folder)
    memory, tokens = _LOGGED.findall(_ESCAPES.sub("", said))[-1]
    return float(tokens.replace(",", "")), float(memory)


def _job(row: Published) -> list[str]:
    """The arguments of the published job: Llama 3.1 8B, selective checkpoints by operator."""
    which = {"model.name": "llama3", "model.flavor": "8B", "training.dataset": "c4_test", "metrics.log_freq": 1}
    sizes = {"training.local_batch_size": row.batch, "training.seq_len": row.sequence, "training.steps": STEPS}
    kept = {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op"}
    return [text for key, value in {**which, **sizes, **kept}.items() for text in (f"--{key}", str(value))]


def _run(command: Sequence[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def write_assets(folder: Path) -> None:
    """Write a tokenizer and a data set as torchtitan looks for them, in its own tests' places."""
    words = [f"w{number}" for number in range(WORDS)]
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2, **{word: number + 3 for number, word in enumerate(words)}}
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": one, **plain} for one, number in (("<s>", 0), ("</s>", 1))],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    place, texts = folder / "tests/assets/tokenizer", folder / "tests/assets/c4_test"
    place.mkdir(parents=True)
    texts.mkdir()
    (place / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    (place / "tokenizer_config.json").write_text(json.dumps(ends), encoding="utf-8")
    draw = random.Random(0)
    lines = [json.dumps({"text": " ".join(draw.choices(words, k=1000))}) for _ in range(1000)]
    (texts / "data.json").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    for title, of_2024 in (("as it is installed", False), ("with the norm and loss of December 2024", True)):
        print(f"torchtitan {title}\n")
        print_found(compared(of_2024=of_2024))
        print()


if __name__ == "__main__":
    main()
