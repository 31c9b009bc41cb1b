"""The documentation's links lead somewhere and its examples run."""

import argparse
import importlib
import re
import runpy
from pathlib import Path

import pytest

import gpurbf
from benchmarks import BENCHMARKS
from benchmarks.report import BEGIN, END
from gpurbf.cli import COMMANDS, module_of

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


BENCHMARK_PAGES = ROOT / "docs" / "benchmarks"


def name(page):
    return str(page.relative_to(ROOT))


def read(*parts):
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


def anchors(page):
    """The anchors of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", read(page).lower(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in LINK.findall(read(page)):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not link.startswith("http"):
            assert target.exists() and (not anchor or anchor in anchors(target)), link


CODE = ("architecture", "extend", "development", "svc", "svc_solver", "fsvc", "reliability")


@pytest.mark.parametrize("page", CODE)
def test_pages_on_the_code_name_files_that_are_there(page):
    """A name is a path from the root or the end of one."""
    folders = ("gpurbf", "benchmarks", "tests", "docs", "examples", "notebooks")
    paths = [path for folder in folders for path in (ROOT / folder, *(ROOT / folder).rglob("*"))]
    there = {f"/{name(path)}" + "/" * path.is_dir() for path in paths}
    named = set(re.findall(r"[\w/]+(?:\.py\b|/(?=`))", read("docs", f"{page}.md")))
    missing = [file for file in named if not any(path.endswith(f"/{file}") for path in there)]
    assert named and not missing, missing


def test_every_wrong_result_names_tests_that_are_there():
    table = read("docs", "reliability.md").split("\n## Wrong results")[1].split("\n## ")[0]
    named = re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){3,})`", table)
    tests = "".join(map(read, (ROOT / "tests").rglob("test_*.py")))
    assert len(named) > 30 and not [each for each in named if f"def test_{each}(" not in tests]


@pytest.mark.parametrize("page", [p for p in PAGES if EXAMPLE.search(read(p))], ids=name)
def test_examples_run_from_top_to_bottom(page, capsys):
    namespace = {}
    for example in EXAMPLE.findall(read(page)):
        exec(compile(example, name(page), "exec"), namespace)


def test_every_public_name_has_a_page():
    text = read("docs", "api.md")
    assert ":toctree: generated\n" in text and ".. currentmodule:: gpurbf\n" in text
    names = {*gpurbf.__all__, *(f"datasets.{name}" for name in gpurbf.datasets.__all__)}
    names |= {f"dask.{name}" for name in ("RBFClassifier", "RBFLayer", "FSVC", "SVC")}
    assert names - {"__version__", "datasets", "datasets.Images"} <= set(text.split())


def test_the_figure_of_the_readme_shows_what_the_benchmark_measured(tmp_path):
    pytest.importorskip("matplotlib").use("agg")
    script = runpy.run_path(str(ROOT / "docs" / "draw_mnist.py"))
    script["draw"](tmp_path / "mnist.svg")
    written, kept = (
        re.findall(r"<text[^>]*>(.*?)</text>", read(folder, "mnist.svg"))
        for folder in (tmp_path, ROOT / "docs")
    )
    rows, _ = script["measured"]()
    assert {f"{seconds:.3g} s" for _, *times, _ in rows for seconds in times} < set(kept)
    assert written == kept, "run python docs/draw_mnist.py"


def numbers(text):
    """The numbers of a text, and their decimals; of "10,000" 10000, of "1.0e-06" as it is."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)
    found = [number.rstrip(",").replace(",", "") for number in found]
    return [(float(number), len(number.partition(".")[2])) for number in found]


def stands_in(value, decimals, measured):
    """Whether a number is a measured one, as it is or rounded, or a thousandth of one, rounded."""
    exact = {number for number, _ in measured}
    return value in exact | {round(n / unit, decimals) for n in exact for unit in (1, 1000)}


def results(*names):
    """All numbers that benchmarks wrote into their pages."""
    pages = [read(BENCHMARK_PAGES, f"{name}.md") for name in names]
    return numbers(" ".join(page.partition(BEGIN)[2].partition(END)[0] for page in pages))


def findings():
    """Each claim of README, the start page and the benchmarks, and the pages that it rests on."""
    index = read(BENCHMARK_PAGES, "index.md")
    for page, text in re.findall(r"^\| \[.*?\]\((\w+)\.md\) \| (.*) \|$", index, re.MULTILINE):
        if page not in ("gpu", "scaling"):
            title, finding = read(BENCHMARK_PAGES, f"{page}.md").split("\n\n")[:2]
            yield pytest.param(title + finding, [page], id=page)
            yield pytest.param(text, [page], id=f"{page}-index")
    for page, first, last in (("README", "* **Same", "* **More"), ("docs/index", "In 13", "[Ben")):
        text = read(f"{page}.md")
        evidence = text[text.index(first) : text.index(last)]
        yield pytest.param(evidence, ["svc", "pipelines"], id=page)


@pytest.mark.parametrize("claim, pages", findings())
def test_figures_in_words_are_those_of_the_tables(claim, pages):
    measured = results(*pages)
    missing = [number for number in numbers(claim) if not stands_in(*number, measured)]
    assert numbers(claim) and not missing, missing


def test_variables_of_the_environment_are_those_that_the_package_reads():
    def named(files):
        return set(re.findall(r"GPURBF_[A-Z_]+", " ".join(map(read, files))))

    package, tests = (named((ROOT / part).rglob("*.py")) for part in ("gpurbf", "tests"))
    assert package <= named(PAGES) <= package | tests


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_described_with_its_options(command):
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(module_of(command)).add_arguments(parser)
    own = read("docs", "commands.md").split(f"\n## {command}\n")[1].split("\n## ")[0]
    options = {option for action in parser._actions for option in action.option_strings}
    assert {o for o in options if not re.search(rf"{re.escape(o)}\b", own)} == set()


def test_readme_is_short():
    assert len(read("README.md").splitlines()) <= 100


def test_nobody_is_sent_to_a_package_index_for_this_package():
    files = [*PAGES, *(ROOT / "gpurbf").rglob("*.py")]
    wrong = [name(f) for f in files if re.search(r"pip install \W*gpurbf", read(f))]
    assert not wrong, wrong


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_benchmark_has_a_page_with_marks_and_a_line_in_the_index(benchmark):
    page = read(BENCHMARK_PAGES, f"{benchmark}.md")
    assert page.count(BEGIN) == page.count(END) == 1
    assert f"({benchmark}.md)" in read(BENCHMARK_PAGES, "index.md")
