"""The shape of the house: what may import what, what a start may cost, and what a wheel may hold."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from triosim import plugins

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parents[1]

#: The four folders, and what they are imported as.
PACKAGES = {
    "triosim": "triosim",
    "tracer": "triosim.tracer",
    "extrapolators": "triosim.extrapolators",
    "networks": "triosim.networks",
}

#: The floors, from the roof to the ground: rooms, and the few modules that lie loose in triosim/. An import goes to the
#: same room or further down. The longest prefix of a module's name says on which floor it is.
FLOORS = (
    *("triosim.__main__", "triosim.cli"),
    *("triosim.configuration_search", "triosim.live"),
    "triosim.monitor",
    *("triosim.capture", "triosim.tracer"),
    *("triosim.reports", "triosim.comparison", "triosim.launch_files"),
    *("triosim.simulation", "triosim.pipeline", "triosim.results"),
    *("triosim.folding", "triosim.engine"),
    "triosim.memory",
    *("triosim.extrapolators", "triosim.extrapolators.pipeline", "triosim.extrapolators.expert"),
    *("triosim.extrapolators.tensor", "triosim.extrapolators.data", "triosim.extrapolators.captured"),
    "triosim.extrapolators.offload",
    *("triosim.extrapolators.deduplication", "triosim.extrapolators.core"),
    "triosim.conditions",
    "triosim.models",
    "triosim.chakra",
    *("triosim.networks.calibration.fit", "triosim.networks.photonic", "triosim.networks.flow"),
    *("triosim.networks", "triosim.networks.calibration"),
    *("triosim.networks.collectives.algorithms", "triosim.networks.collectives", "triosim.networks.topology"),
    *("triosim.compute.fit", "triosim.compute.pricing", "triosim.compute.models", "triosim.compute.learned"),
    *("triosim.compute", "triosim.sharding", "triosim.operators"),
    *("triosim.config", "triosim.tasks"),
    *("triosim.gpus", "triosim.trace", "triosim.plugins"),
    *("triosim.input_files", "triosim.output_files", "triosim.temporary_folder", "triosim.garbage_collector"),
    *("triosim.units", "triosim.errors"),
    "triosim",  # its version: everything else that it names, it loads when it is asked for
)
HEIGHT = {prefix: height for height, prefix in enumerate(reversed(FLOORS))}

#: What takes long to import, and is needed by some runs only.
HEAVY = ("torch", "sklearn", "scipy", "pandas", "matplotlib", "networkx", "numba", "pydantic")

MOST_LINES = 510
MOST_LOOSE = 10
MOST_IN_A_ROOM = 15


class Import(NamedTuple):
    """That a module imports another; ``late`` is inside of a function."""

    source: str
    target: str
    late: bool


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


MODULES = modules()


def imports_of(name: str) -> Iterator[Import]:
    """Yield what a module imports of ours, at load time or late; what the type checker alone imports costs nothing."""
    todo: list[tuple[ast.AST, bool]] = [(ast.parse(MODULES[name].read_text(encoding="utf-8")), False)]
    while todo:
        node, late = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for target in targets_of(name, node):
                if target.partition(".")[0] == "triosim" and target != name:
                    yield Import(name, target, late)
        elif not is_type_checking(node):
            inside = late or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            todo += [(child, inside) for child in ast.iter_child_nodes(node)]


def targets_of(name: str, node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, f"{name} line {node.lineno}: a relative import"
    return [
        f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in MODULES else str(node.module)
        for alias in node.names
    ]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def floor(module: str) -> str:
    """Return the longest prefix of a module's name that is a floor."""
    prefix = module
    while prefix not in HEIGHT:
        prefix = prefix.rpartition(".")[0]
    return prefix


def room(module: str) -> str:
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_an_import_goes_down(name: str) -> None:
    upward = {found.target for found in imports_of(name) if HEIGHT[floor(found.target)] > HEIGHT[floor(name)]}
    assert not upward


def test_every_room_has_its_floor() -> None:
    """A new room at the top of triosim/ is put on a floor here, instead of landing on the ground by default."""
    assert not [name for name in MODULES if floor(name) == "triosim" and name != "triosim"]


def test_no_imports_go_in_a_circle() -> None:
    """Of those when a module is loaded and of late ones alike."""
    below = {name: {found.target for found in imports_of(name)} for name in MODULES}
    while True:
        leaves = [name for name, targets in below.items() if not targets & below.keys() - {name}]
        if not leaves:
            break
        for name in leaves:
            del below[name]
    assert not below


def test_late_imports_are_for_heavy_dependencies_alone() -> None:
    """Start-up loads a command, a public name or a plug-in by its name instead (``importlib``)."""
    assert not [found for name in MODULES for found in imports_of(name) if found.late]


def test_few_modules_lie_loose() -> None:
    loose = [name for name in MODULES if room(name) == "triosim" and name != "triosim"]
    assert len(loose) <= MOST_LOOSE
    beside_rooms = [name for name in MODULES if room(name) == "triosim.extrapolators" != name]
    assert not beside_rooms


def test_a_room_is_not_crowded() -> None:
    files = Counter(room(name) for name in MODULES if room(name) != name)
    assert {name: count for name, count in files.items() if count > MOST_IN_A_ROOM} == {}


@pytest.mark.parametrize(
    "program",
    [
        "import triosim",
        "import triosim.cli",
        "import triosim.simulation",
        "import triosim; triosim.Topology.load('dgx-h100', gpus=16)",
        "from triosim.cli import run; run(['simulate', 'TRACE', '--parallel', 'ddp', '--gpus', '2', '--quiet'])",
    ],
)
def test_a_start_does_not_pay_for_what_it_does_not_use(program: str, tmp_path: Path) -> None:
    trace = ROOT / "examples" / "traces" / "vgg13_a100_fake.json.gz"
    program = program.replace("TRACE", str(trace))
    ask = f"import sys\n{program}\nprint(*sorted(sys.modules.keys() & {set(HEAVY)!r}))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split() == []
    assert done.stderr == ""


@pytest.mark.parametrize("package", ["triosim", "triosim.compute", "triosim.extrapolators", "triosim.networks"])
def test_no_public_name_is_hidden_behind_a_module_of_the_same_name(package: str) -> None:
    """A submodule, once imported, is an attribute of its package, and ``__getattr__`` is not asked any more."""
    names = importlib.import_module(package).__all__
    hidden = {name for name in names if f"{package}.{name}" in MODULES}
    assert hidden <= {"max_min"}  # which is meant to be the module


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_in_a_sentence_what_it_is_about(name: str) -> None:
    text = ast.get_docstring(ast.parse(MODULES[name].read_text(encoding="utf-8"))) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    assert len(first.split()) >= 4
    assert any(f"{end} " in f"{first} " for end in ".?:")


@pytest.mark.parametrize("name", MODULES)
def test_a_file_can_be_read_in_one_sitting(name: str) -> None:
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports those outside of packages by their names alone."""
    files = [one for one in ROOT.glob("tests/**/test_*.py") if not (one.parent / "__init__.py").exists()]
    assert [name for name, count in Counter(one.name for one in files).items() if count > 1] == []


def test_a_wheel_holds_triosim_and_nothing_beside_it() -> None:
    """People's model repositories have a ``networks/`` of their own, so ours is installed inside ``triosim/`` only."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    packages, folders = settings["packages"], settings["package-dir"]
    assert folders == {package: folder for folder, package in PACKAGES.items()}
    assert {package.partition(".")[0] for package in packages} == {"triosim"}
    assert "py-modules" not in settings


def test_a_wheel_holds_all_of_triosim() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    with_code = {name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in MODULES.items()}
    assert sorted(settings["packages"]) == sorted(with_code)
    others = [
        path
        for folder in PACKAGES
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix != ".py"
        and not any(part[:2] == "__" or part[:1] == "." for part in path.parts)
    ]
    patterns = settings["package-data"]["*"]
    assert not [path for path in others if not any(path.match(pattern) for pattern in patterns)]


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group in plugins.GROUPS for name in plugins.BUILT_IN[group]]
)
def test_what_ships_with_triosim_can_be_loaded_by_its_name(group: plugins.Group, name: str) -> None:
    found = plugins.load(group, name)
    for alternatives in plugins.REQUIRED[group]:
        assert any(callable(getattr(found, method, None)) for method in alternatives)
    assert not getattr(found, "__abstractmethods__", None)
