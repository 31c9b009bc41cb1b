"""The gallery runs, and its first group prints the same with scikit-learn's SVC."""

import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpurbf import datasets

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
HOW_TO = sorted((ROOT / "examples" / "how_to").glob("plot_*.py"))
OURS, THEIRS = "from gpurbf import SVC\n", "from sklearn.svm import SVC\n"


def name(path):
    return path.stem.removeprefix("plot_")


@pytest.fixture
def no_mnist(monkeypatch):
    missing = Mock(side_effect=FileNotFoundError("no MNIST for this test"))
    monkeypatch.setattr(datasets, "load_mnist", missing)


@pytest.fixture
def show(capsys):
    """A function that executes a script, draws on no screen and returns what was printed."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")

    def run(source, path):
        with plt.rc_context(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(plt, "show", lambda: None)
            exec(compile(source, path, "exec"), {"__name__": "__main__"})
            assert plt.get_fignums(), "an example shows something"
            for number in plt.get_fignums():
                plt.figure(number).canvas.draw()
            plt.close("all")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("path", EXAMPLES, ids=name)
def test_only_the_import_differs_and_the_output_does_not(path, show):
    source = path.read_text(encoding="utf-8")
    assert source.count(OURS) == 1
    assert set(re.findall(r"^.*gpurbf.*$", source, re.MULTILINE)) <= {
        OURS.strip(),
        'plt.style.use("gpurbf.figures")',
    }
    ours, theirs = show(source, path), show(source.replace(OURS, THEIRS), path)
    assert ours.strip() and ours == theirs


@pytest.mark.parametrize("path", HOW_TO, ids=name)
def test_how_to_examples_do_what_they_say(path, show):
    source = path.read_text(encoding="utf-8")
    if "sklearn.callback" in source:
        pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
    printed = show(source, path)
    # The verdict of a profile gives shares of time, that of the part "accuracy" too.
    scores = numbers("accuracy *", re.sub(r"^(Training|Prediction): .*$", "", printed, flags=re.M))
    assert all(score > 70 for score in scores)
    assert scores or re.search(r"output training +HᵀH", printed)


def beyond(stem):
    path = ROOT / "examples" / "beyond" / f"plot_{stem}.py"
    return path.read_text(encoding="utf-8"), path


def numbers(pattern, printed):
    """The numbers within some words, in the order in which they were printed."""
    return [float(number) for number in re.findall(pattern.replace("*", r"([\d.]+)"), printed)]


def test_virtual_support_vectors_without_mnist_say_so_and_help(show, no_mnist):
    printed = show(*beyond("virtual_support_vectors"))
    assert printed.startswith("MNIST is not at hand")
    before, after = numbers("* wrong", printed)
    assert after < before


@pytest.mark.slow
def test_virtual_support_vectors_reach_what_the_page_promises(show, mnist, monkeypatch):
    monkeypatch.setattr(datasets, "load_mnist", lambda data_home=None: mnist)
    _, after = numbers("* wrong", show(*beyond("virtual_support_vectors")))
    assert after <= 62  # 60 where the page was measured; another BLAS may round a byte otherwise


@pytest.mark.slow
def test_a_million_rows_are_learnt(show):
    printed = show(*beyond("million_rows"))
    assert printed.startswith("1,000,000 rows")
    assert numbers("*% of the test rows", printed)[0] > 99


def test_all_centers_are_better_than_some(show, no_mnist):
    right = numbers("* % of the test", show(*beyond("all_centers")))
    assert right == sorted(right) and right[-1] > 99
