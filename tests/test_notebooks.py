"""The notebooks in examples/notebooks name only what there is; that they run, .ci/run sees."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import triosim
from triosim.comparison.strategies import compare

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
FOLDER = EXAMPLES / "notebooks"
_STUDIES = "choosing_parallelism hop_backup_workers memory_beyond_gpus own_network training_70b wafer_photonic"
STUDIES = {*_STUDIES.split()}
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def code(path: Path) -> ast.Module:
    return ast.parse("\n".join("".join(cell["source"]) for cell in cells(path, "code")))


def test_each_case_study_has_its_notebook_and_its_pictures_in_the_documentation() -> None:
    assert {path.stem for path in NOTEBOOKS} == {*STUDIES, "tour"}
    page = (ROOT / "docs" / "case-studies.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        figures = [cell["id"] for cell in cells(path, "code") if cell["id"].startswith("figure-")]
        assert bool(figures) == (path.stem in STUDIES)
        for figure in figures:
            picture = f"images/{path.stem}_{figure.removeprefix('figure-')}.png"
            assert f"]({picture})" in page
            assert (ROOT / "docs" / picture).is_file()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_its_outputs_and_begins_with_what_it_is_about(path: Path) -> None:
    first = json.loads(path.read_text(encoding="utf-8"))["cells"][0]
    assert first["cell_type"] == "markdown"
    assert first["source"][0].startswith("# ")
    for cell in cells(path, "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_takes_from_triosim_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # as the notebooks do
    known = {
        *(
            name
            for called in (triosim.simulate, compare, triosim.search)
            for name in inspect.signature(called).parameters
        )
    }
    simulated = False
    for node in ast.walk(code(path)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("triosim", "hop_backup_workers")):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "triosim":
            assert node.attr in triosim.__all__
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("triosim.simulate", "compare", "triosim.search"):
            assert {word.arg for word in node.keywords if word.arg} <= known, ast.unparse(node)
            simulated = True
    assert simulated or path.stem == "hop_backup_workers"  # whose script simulates
