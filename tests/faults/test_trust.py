"""No input runs code: not by the name of a plug-in in it, not by a tag of YAML, not by a pickle (docs/security.md)."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fuzz.kinds import KINDS, Kind
from tests.fuzz.running import run

pytestmark = pytest.mark.slow

#: A file of options is trusted as options are; the other kinds come from others.
FROM_OTHERS = [kind for kind in KINDS if kind.files and kind.name not in ("config", "space", "chakra", "study")]
NAME = "evil.py:Evil"


def lay_trap(folder: Path) -> Path:
    """Write a plug-in that leaves a trace when it is loaded, and return the path of that."""
    caught = folder / "caught"
    (folder / "evil.py").write_text(f"open({str(caught)!r}, 'w').close()\nclass Evil:\n    pass\n")
    return caught


def names_in_place_of_texts(value: Any) -> list[Any]:
    """Return copies of a JSON value, each with another text in it replaced."""
    found = []
    if isinstance(value, dict):
        for key, one in value.items():
            found += [{**value, key: other} for other in names_in_place_of_texts(one)]
    elif isinstance(value, list):
        for number, one in enumerate(value[:3]):
            found += [[*value[:number], other, *value[number + 1 :]] for other in names_in_place_of_texts(one)]
    elif isinstance(value, str):
        found.append(NAME)
    return found


@pytest.mark.parametrize("kind", FROM_OTHERS, ids=lambda kind: kind.name)
def test_a_plug_in_that_an_input_names_is_not_loaded(kind: Kind, tmp_path: Path) -> None:
    kind.make(tmp_path)
    caught = lay_trap(tmp_path)
    for name in kind.files:
        sound = (tmp_path / name).read_bytes()
        packed = sound[:2] == b"\x1f\x8b"
        text = (gzip.decompress(sound) if packed else sound).decode("latin-1")  # bytes of any file, one a character
        if ".json" in name:
            texts = [json.dumps(one) for one in names_in_place_of_texts(json.loads(text))][:40]
        else:
            words = sorted(
                {word for word in text.replace(",", " ").replace(":", " ").split() if any(map(str.isalpha, word))}
            )[:20]
            texts = [text.replace(word, NAME, 1) for word in words]
        for changed in texts:
            data = changed.encode("latin-1")
            (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
            run(kind.commands[0].split(), tmp_path)
            assert not caught.exists(), changed
        (tmp_path / name).write_bytes(sound)


@pytest.mark.parametrize("kind", [one for one in KINDS if any(name.endswith(("yaml", "yml")) for name in one.files)],
                         ids=lambda kind: kind.name)  # fmt: skip
def test_a_tag_of_yaml_runs_nothing(kind: Kind, tmp_path: Path) -> None:
    kind.make(tmp_path)
    caught = tmp_path / "caught"
    for name in (one for one in kind.files if one.endswith(("yaml", "yml"))):
        (tmp_path / name).write_text(f"topology: !!python/object/apply:os.system ['touch {caught}']\n")
        for command in kind.commands:
            ended = run(command.split(), tmp_path)
            assert not caught.exists()
            assert ended.status == 2 or "is not read" in ended.output + ended.errors


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("caught"),)


def test_no_pickle_is_read(tmp_path: Path) -> None:
    next(kind for kind in KINDS if kind.name == "trace").make(tmp_path)
    (tmp_path / "evil.json").write_bytes(pickle.dumps(_Evil()))
    np.savez(tmp_path / "evil.npz", about=np.array([_Evil()], dtype=object), allow_pickle=True)
    for command in (
        "show evil.json",
        "simulate evil.json",
        "simulate trace.json --models evil.npz",
        "report evil.json",
    ):
        ended = run(command.split(), tmp_path)
        assert ended.status == 2, (command, ended.errors)
        assert not (tmp_path / "caught").exists()


@pytest.mark.parametrize("command", ["run", "capture --fake -o out.json", "search --gpus 2 --script"])
def test_a_device_is_no_script(command: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ended = run([*command.split(), "/dev/zero"], tmp_path)
    assert ended.status == 2
    assert "/dev/zero: is a device, not a script" in ended.errors
