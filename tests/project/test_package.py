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
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "gpurbf").rglob("*.py"))
}
PUBLIC = [name for name in gpurbf.__all__ if name not in ("__version__", "datasets")]


def run(*command):
    """Output of a command in the repository; its failure shows that output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def text(*parts):
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


def nodes(path):
    """The syntax of a file, node by node."""
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def configuration():
    return tomllib.loads(text("pyproject.toml"))


@pytest.mark.parametrize(
    ("code", "not_needed"),
    [
        ("import gpurbf; dir(gpurbf)", "numba llvmlite cupy sklearn scipy numpy joblib"),
        (f"from gpurbf import {', '.join(gpurbf.__all__)}", "numba llvmlite cupy matplotlib"),
        (
            "from gpurbf import FSVC, SVC, RBFClassifier; SVC().get_params()",
            "sklearn.svm sklearn.metrics sklearn.model_selection",
        ),
    ],
    ids=["the package", "every public name", "classifiers"],
)
def test_an_import_waits_for_no_library_that_it_does_not_need(code, not_needed):
    loaded = run(sys.executable, "-c", f"{code}; import sys; print(*sys.modules)").split()
    assert "gpurbf" in loaded and not set(not_needed.split()) & set(loaded)


def test_names_of_the_package_are_listed_and_unknown_ones_refused():
    assert set(gpurbf.__all__) <= set(dir(gpurbf))
    assert len(set(gpurbf.__all__)) == len(gpurbf.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'RBFRegressor'"):
        gpurbf.RBFRegressor  # noqa: B018
    for name in gpurbf.__all__:
        assert getattr(gpurbf, name) is getattr(gpurbf, name)


def test_type_checkers_see_the_same_exports():
    homes = {f"{getattr(gpurbf, name).__module__}.{name}" for name in PUBLIC}
    assert homes < set(imported_names(nodes(MODULES["gpurbf"])))


def test_import_contracts_hold():
    pytest.importorskip("importlinter")
    program = shutil.which("lint-imports", path=Path(sys.executable).parent)
    run(program, "--no-logo", "--no-cache")


def test_lazy_modules_obey_the_import_law_and_setup_cfg_holds_nothing_else():
    """The linter does not see ``lazy_module("...")``; the order of folders is that of setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    assert all(section.startswith("importlinter") for section in setup.sections())
    layers = setup["importlinter:contract:law"]["layers"].split("\n")
    ranks = {room.strip(): rank for rank, layer in enumerate(layers) for room in layer.split("|")}
    lazy = [(name, found) for name in MODULES for found in lazy_names(nodes(MODULES[name]))]
    assert lazy
    for name, found in lazy:
        room, (library, target, *_) = name.split(".")[1], found.split(".")
        allowed = library != "gpurbf" or target == room or ranks[target] > ranks[room]
        assert allowed and importlib.util.find_spec(found), f"{name} imports {found}"


def test_no_file_imports_in_a_circle():
    """At import or at first use, in any number of steps; what only annotations need is left out."""
    graph = {}
    for name, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
                node.body = []
        found = [*imported_names(ast.walk(tree)), *lazy_names(ast.walk(tree))]
        owners = {one if one in MODULES else one.rpartition(".")[0] for one in found}
        graph[name] = owners & MODULES.keys() - {name}
    assert sum(map(len, graph.values())) > 500
    list(graphlib.TopologicalSorter(graph).static_order())


# What a user may import: these modules, and of the package itself the names of its __all__.
ROOMS = ("centers", "cli", "dask", "datasets", "onnx", "patching", "solvers")
PUBLIC_MODULES = {f"gpurbf.{room}" for room in ROOMS}


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
    return name == "gpurbf" or (module in PUBLIC_MODULES and not last.startswith("_"))


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


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is_for_and_takes_at_most_ten_arguments_by_position(name):
    module, *others = nodes(MODULES[name])
    assert ast.get_docstring(module), "no docstring"
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    taken = [node.args for node in others if isinstance(node, functions)]
    long = [args for args in taken if len(args.posonlyargs + args.args) > 10]
    assert not long, "use a NamedTuple where a group has a meaning, or keyword-only arguments"


def test_mkl_is_asked_for_only_where_it_has_wheels():
    requirements = pytest.importorskip("packaging.requirements")
    extra = configuration()["project"]["optional-dependencies"]["mkl"]
    markers = [requirements.Requirement(line).marker for line in extra]
    there = [("linux", "x86_64"), ("win32", "AMD64")]
    for platform in [*there, ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64")]:
        environment = dict(zip(("sys_platform", "platform_machine"), platform))
        assert sum(marker.evaluate(environment) for marker in markers) == (platform in there)


def test_files_that_are_not_python_are_installed_too():
    patterns = configuration()["tool"]["setuptools"]["package-data"]["gpurbf"]
    others = [p for p in (ROOT / "gpurbf").iterdir() if p.is_file() and p.suffix != ".py"]
    assert others and all(any(map(path.match, patterns)) for path in others)


def test_the_commands_of_the_readme_are_the_ones_that_ci_runs():
    test = 'python -m pip install ".[mkl,plot,test]" && python -m pytest -n 2 --dist worksteal'
    use = 'python -m pip install ".[plot]" && python -m gpurbf classify'
    docs = 'python -m pip install ".[docs]" && python -m sphinx docs docs/_build'
    assert {test, use, docs} <= set(text("README.md").splitlines()) and test in text(".ci", "run")


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {gpurbf.__version__}\n" in text("CITATION.cff")
    assert f'version = "{gpurbf.__version__}"' in text("recipe", "meta.yaml")
    assert f"## {gpurbf.__version__}" in text("CHANGELOG.md")


def test_the_recipe_asks_for_what_the_package_does_which_is_five_others():
    project = configuration()["project"]
    names = {requirement.partition(">=")[0] for requirement in project["dependencies"]}
    assert names == {"numpy", "scikit-learn", "numba", "joblib", "threadpoolctl"}
    run = re.search(r"  run:\n((?:    - .*\n)+)", text("recipe", "meta.yaml"))[1]
    asked = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    assert asked == {f"python{project['requires-python']}", *project["dependencies"]}


SCRIPT = f"""
import numpy as np
import gpurbf
from gpurbf import {", ".join(gpurbf.__all__)}
X, y = np.eye(4), np.array([0, 0, 1, 1])
with config_context(memory=64):
    model: SVC = SVC(C=10, gamma=0.1).fit(X, y)
labels: np.ndarray = RBFClassifier(2).fit(X, y).predict(X)
H = RBFLayer(2).fit(X).transform(X)
back: SVC = SVC.from_sklearn(model.to_sklearn())
print(FSVC(1.0).fit(X, y).decision_function(X), H, labels, gpurbf.__version__)
images: datasets.Images = datasets.load_mnist()
gpurbf.patch_sklearn()
"""


@pytest.mark.slow
def test_a_strict_checker_accepts_a_users_script(tmp_path):
    """From the user's folder: beside the sources a checker would take them for the user's own."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    if 'module named "gpurbf"' in done.stdout:
        pytest.skip("gpurbf is not installed where mypy looks for it")
    assert done.returncode == 0, done.stdout + done.stderr
