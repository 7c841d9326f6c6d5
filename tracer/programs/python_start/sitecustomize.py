"""Python runs this when it starts (module ``site``): the files of a process that a script has started go into its overlay.

Where triosim cannot be imported, as in another Python, nothing happens. A ``sitecustomize`` of the user's runs after it.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys


def _begin() -> None:
    try:
        started = importlib.import_module("triosim.tracer.programs.started_python")
    except ImportError:
        return
    with contextlib.suppress(OSError):  # the run is over, and its folder gone
        started.begin()


def _run_next() -> None:
    here = os.path.dirname(os.path.realpath(__file__))
    others = [folder for folder in sys.path if os.path.realpath(folder) != here]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if found is not None and found.loader is not None:
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)


_begin()
_run_next()
