"""Executes the notebooks of this folder, on the traces that ship or on all networks of the case studies.

    python examples/notebooks/run.py [--whole] [--to FOLDER] [--pictures FOLDER] [NAME ...]

``--whole`` first captures the traces that do not ship, into ``examples/traces/more``; that needs PyTorch, torchvision and
transformers, and minutes. What was executed is written to ``examples/notebooks/executed`` unless ``--to`` says where, and the
output of each cell whose id begins with ``figure-`` to the folder of pictures. Needs nbconvert and ipykernel.
"""

from __future__ import annotations

import argparse
import base64
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
FIGURE = "figure-"


def execute(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with its outputs; raises ``CellExecutionError`` where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=None, resources=where, extra_arguments=["--log-level=ERROR"]).execute()
    return notebook


def save_pictures(notebook: nbformat.NotebookNode, name: str, folder: Path) -> None:
    """Write the pictures of a notebook as NAME_ID.png."""
    for cell in notebook.cells:
        if cell.cell_type != "code" or not cell.id.startswith(FIGURE):
            continue
        for output in cell.outputs:
            encoded = output.get("data", {}).get("image/png")
            if encoded:
                picture = folder / f"{name}_{cell.id.removeprefix(FIGURE)}.png"
                picture.write_bytes(base64.b64decode(encoded))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [path.stem for path in sorted(HERE.glob("*.ipynb"))]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--whole", action="store_true", help="all networks of the case studies")
    parser.add_argument("--to", type=Path, default=HERE / "executed", metavar="FOLDER")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    for name in options.names:
        if name not in known:
            parser.error(f"there is no {name!r}; the notebooks are {', '.join(known)}")
    if options.whole:
        subprocess.run([sys.executable, str(HERE.parent / "traces" / "make.py"), "--studies"], check=True)
        os.environ["TRIOSIM_STUDIES"] = "whole"
    for folder in (options.to, options.pictures):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or known:
        began = time.perf_counter()
        notebook = execute(HERE / f"{name}.ipynb")
        nbformat.write(notebook, options.to / f"{name}.ipynb")
        if options.pictures is not None:
            save_pictures(notebook, name, options.pictures)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
