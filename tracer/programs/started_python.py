"""The overlay in a process of Python that a script has started: by ``multiprocessing``, ``subprocess`` or a shell."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from triosim.tracer.patches import Patches
from triosim.tracer.surroundings import file_functions, native_libraries
from triosim.tracer.surroundings.after_imports import AfterImports
from triosim.tracer.surroundings.file_overlay import FileOverlay

#: The variable that names the overlay's folder and those that are shared.
FOLDERS = "TRIOSIM_FILES"
_ON_START = str(Path(__file__).with_name("python_start"))


def set_environment(patches: Patches, files: FileOverlay) -> None:
    """Let processes of Python that are started use the overlay until the patches are undone."""
    before = os.environ.get("PYTHONPATH")
    patches.set_variable("PYTHONPATH", _ON_START if not before else f"{_ON_START}{os.pathsep}{before}")
    patches.set_variable(FOLDERS, os.pathsep.join(files.folders))


def is_set(variables: Mapping[str, str]) -> bool:
    """Whether Python that is started with these variables uses the overlay."""
    return FOLDERS in variables and _ON_START in variables.get("PYTHONPATH", "").split(os.pathsep)


def begin() -> None:
    """Use the overlay of the script that started this process, if its environment names one, to the end of the process."""
    folders = os.environ.get(FOLDERS)
    if not folders:
        return
    folder, *shared = folders.split(os.pathsep)
    files = FileOverlay(folder, tuple(shared))
    patches = Patches()
    file_functions.install(patches, files)
    AfterImports(patches, native_libraries.after_import(files)).install()
