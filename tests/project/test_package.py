"""The package as a whole: what importing it costs, its contracts, style, metadata and files."""

import ast
import configparser
import doctest
import graphlib
import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gpurbf

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "gpurbf").rglob("*.py"))
PUBLIC = [name for name in gpurbf.__all__ if name not in ("__version__", "datasets")]
README_COMMANDS = (
    'python -m pip install ".[plot]" && python -m gpurbf classify',
    'python -m pip install ".[mkl,plot,test]" && python -m pytest -n 2 --dist worksteal',
    'python -m pip install ".[docs]" && python -m sphinx docs docs/_build',
)


def run(*command):
    """Output of a command in the repository; its failure shows that output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python_imports(code):
    """Which top-level modules a fresh interpreter holds after running the code."""
    show = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    return set(run(sys.executable, "-c", f"{code}\n{show}").split())


def text(*parts):
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


def nodes(path):
    """The syntax of a file, node by node."""
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def configuration():
    return tomllib.loads(text("pyproject.toml"))


def test_import_brings_in_no_library_at_all():
    loaded = python_imports("import gpurbf; dir(gpurbf)")
    assert "gpurbf" in loaded
    assert not loaded & {"numba", "llvmlite", "cupy", "sklearn", "scipy", "numpy", "joblib"}


def test_every_public_name_resolves_without_numba_or_a_gpu_library():
    names = ", ".join(gpurbf.__all__)
    loaded = python_imports(f"from gpurbf import {names}; gpurbf_names = [{names}]")
    assert not loaded & {"numba", "llvmlite", "cupy", "matplotlib"}


def test_classifiers_do_not_wait_for_other_estimators_to_be_imported():
    code = "from gpurbf import FSVC, SVC, RBFClassifier; SVC().get_params()"
    found = "{'sklearn.svm', 'sklearn.metrics', 'sklearn.model_selection'} & set(sys.modules)"
    assert run(sys.executable, "-c", f"import sys; {code}; print({found})").strip() == "set()"


def test_names_of_the_package_are_listed_and_unknown_ones_refused():
    assert set(gpurbf.__all__) <= set(dir(gpurbf))
    assert len(set(gpurbf.__all__)) == len(gpurbf.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'RBFRegressor'"):
        gpurbf.RBFRegressor  # noqa: B018
    for name in gpurbf.__all__:
        assert getattr(gpurbf, name) is getattr(gpurbf, name)


def test_type_checkers_see_the_same_exports():
    tree = ast.parse(text("gpurbf", "__init__.py"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    declared = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert declared == gpurbf._HOMES | {"datasets": "gpurbf"}


def test_import_contracts_hold():
    pytest.importorskip("importlinter")
    program = shutil.which("lint-imports", path=Path(sys.executable).parent)
    run(program, "--no-logo", "--no-cache")


def test_lazy_modules_obey_the_import_law():
    """The linter does not see ``lazy_module("...")``; the order of folders is that of setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    layers = setup["importlinter:contract:law"]["layers"].split("\n")
    ranks = {room.strip(): rank for rank, layer in enumerate(layers) for room in layer.split("|")}
    lazy = [
        (path.relative_to(ROOT / "gpurbf").parts[0].removesuffix(".py"), name)
        for path in MODULES
        for name in lazy_names(nodes(path))
    ]
    assert lazy
    for room, name in lazy:
        library, target, *_ = name.split(".")
        assert importlib.util.find_spec(name), name
        assert library != "gpurbf" or target == room or ranks[target] > ranks[room], (
            f"{room} imports {name}"
        )


def test_no_file_imports_in_a_circle():
    """At import or at first use, in any number of steps; what only annotations need is left out."""
    names = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts).removesuffix(".__init__")] = path
    graph = {name: set() for name in names}
    for name, path in names.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                node.body = []
        found = [*imported_names(ast.walk(tree)), *lazy_names(ast.walk(tree))]
        owners = (one if one in names else one.rpartition(".")[0] for one in found)
        graph[name].update({owner for owner in owners if owner in names} - {name})
    assert sum(map(len, graph.values())) > 500
    list(graphlib.TopologicalSorter(graph).static_order())


# What a user may import: these modules, and of the package itself the names of its __all__.
PUBLIC_MODULES = {
    "gpurbf",
    "gpurbf.centers",
    "gpurbf.cli",
    "gpurbf.dask",
    "gpurbf.datasets",
    "gpurbf.onnx",
    "gpurbf.patching",
    "gpurbf.solvers",
}


def imported_names(syntax):
    """Every module and every name of a module that a file imports, as dotted names."""
    for node in syntax:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def lazy_names(syntax):
    """Every module that a file imports at its first use."""
    for node in syntax:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "lazy_module":
            yield node.args[0].value


def is_public(name):
    """Whether a user may import it."""
    module, _, last = name.rpartition(".")
    if module == "gpurbf":
        return name in PUBLIC_MODULES or last in gpurbf.__all__
    return name in PUBLIC_MODULES or (module in PUBLIC_MODULES and not last.startswith("_"))


def test_contract_tests_import_public_names_only():
    """Promises to users are checked with what users have."""
    inside = [
        f"{path.name}: {name}"
        for path in sorted((ROOT / "tests" / "contract").glob("*.py"))
        for name in imported_names(nodes(path))
        if name.partition(".")[0] == "gpurbf" and not is_public(name)
    ]
    assert not inside, inside


@pytest.mark.parametrize("command", [("check",), ("format", "--check")], ids=" ".join)
def test_ruff_has_no_complaint(command):
    pytest.importorskip("ruff")
    run(sys.executable, "-m", "ruff", *command, "--quiet", ".")


@pytest.mark.slow
def test_type_hints_hold():
    pytest.importorskip("mypy")
    run(sys.executable, "-m", "mypy")


def documented():
    """Public names, and the methods that this package defines on them."""
    for name in PUBLIC:
        value = getattr(gpurbf, name)
        yield f"{value.__module__}.{name}"
        if inspect.isclass(value):
            for method, function in inspect.getmembers(value, inspect.isfunction):
                if not method.startswith("_") and function.__module__.startswith("gpurbf"):
                    yield f"{value.__module__}.{name}.{method}"
    for name in gpurbf.datasets.__all__:
        yield f"gpurbf.datasets.{name}"


def test_public_docstrings_are_numpydoc():
    validate = pytest.importorskip("numpydoc.validate")
    checks = set(configuration()["tool"]["numpydoc_validation"]["checks"])
    assert "all" in checks
    problems = [
        f"{name}: {code} {message}"
        for name in documented()
        for code, message in validate.validate(name)["errors"]
        if code not in checks
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", [*PUBLIC, "datasets"])
def test_examples_in_docstrings_run(name):
    value = getattr(gpurbf, name)
    module = importlib.import_module(getattr(value, "__module__", value.__name__))
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(value, name, module=module):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for(path):
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), "no docstring"


def test_mkl_is_asked_for_only_where_it_has_wheels():
    requirements = pytest.importorskip("packaging.requirements")
    extra = configuration()["project"]["optional-dependencies"]["mkl"]
    markers = [requirements.Requirement(line).marker for line in extra]

    def asked(platform, machine):
        environment = {"sys_platform": platform, "platform_machine": machine}
        return sum(marker.evaluate(environment) for marker in markers)

    assert asked("linux", "x86_64") == asked("win32", "AMD64") == 1
    for elsewhere in [("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")]:
        assert asked(*elsewhere) == 0


def test_files_that_are_not_python_are_installed_too():
    patterns = configuration()["tool"]["setuptools"]["package-data"]["gpurbf"]
    others = [path for path in (ROOT / "gpurbf").iterdir() if path.is_file()]
    others = [path for path in others if path.suffix != ".py"]
    assert others
    assert all(any(path.match(pattern) for pattern in patterns) for path in others)


def test_hard_dependencies_are_these_five():
    requirements = pytest.importorskip("packaging.requirements")
    names = {requirements.Requirement(r).name for r in configuration()["project"]["dependencies"]}
    assert names == {"numpy", "scikit-learn", "numba", "joblib", "threadpoolctl"}


def test_the_commands_of_the_readme_are_the_ones_that_ci_runs():
    readme = text("README.md").splitlines()
    ci = text(".ci", "run")
    assert all(command in readme for command in README_COMMANDS)
    assert README_COMMANDS[1] in ci


def test_setup_cfg_holds_import_contracts_only():
    lines = text("setup.cfg").splitlines()
    sections = [line for line in lines if line.startswith("[")]
    assert sections and all(section.startswith("[importlinter") for section in sections)


def test_no_function_takes_more_than_ten_arguments_by_position():
    found = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        and len(node.args.posonlyargs + node.args.args) > 10
    ]
    assert not found, "use a NamedTuple where a group has a meaning, or keyword-only arguments"


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {gpurbf.__version__}\n" in text("CITATION.cff")
    assert f'version = "{gpurbf.__version__}"' in text("recipe", "meta.yaml")
    assert f"## {gpurbf.__version__}" in text("CHANGELOG.md")


def test_the_recipe_asks_for_what_the_package_does():
    project = configuration()["project"]
    run = re.search(r"  run:\n((?:    - .*\n)+)", text("recipe", "meta.yaml"))[1]
    asked = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    assert asked == {f"python{project['requires-python']}", *project["dependencies"]}


@pytest.mark.slow
def test_a_strict_checker_accepts_a_users_script(tmp_path):
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "import gpurbf\n"
        "from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer, config_context, datasets\n"
        "X, y = np.eye(4), np.array([0, 0, 1, 1])\n"
        "with config_context(memory=64):\n"
        "    model: SVC = SVC(C=10, gamma=0.1).fit(X, y)\n"
        "labels: np.ndarray = RBFClassifier(2).fit(X, y).predict(X)\n"
        "H = RBFLayer(2).fit(X).transform(X)\n"
        "back: SVC = SVC.from_sklearn(model.to_sklearn())\n"
        "print(FSVC(1.0).fit(X, y).decision_function(X), H, labels, gpurbf.__version__)\n"
        "images: datasets.Images = datasets.load_mnist()\n"
        "gpurbf.patch_sklearn()\n",
        encoding="utf-8",
    )
    # From the user's folder: beside the sources a checker would take them for the user's own.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(script)]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    if 'module named "gpurbf"' in done.stdout:
        pytest.skip("gpurbf is not installed where mypy looks for it")
    assert done.returncode == 0, done.stdout + done.stderr
