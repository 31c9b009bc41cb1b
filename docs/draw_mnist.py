"""Draw mnist.svg, README's figure, from the measured table of benchmarks/svc.md.

``python docs/draw_mnist.py`` after the benchmark has been run again; a test compares the two.
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
HEADING = "## MNIST: 60,000 training and 10,000 test samples"


def measured():
    """Rows (name, seconds of fit, seconds of predict, accuracy in per cent), processor and date."""
    page = (HERE / "benchmarks" / "svc.md").read_text(encoding="utf-8")
    table = page.partition(HEADING)[2].partition("\n## ")[0]
    rows = []
    for line in re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[2:]:
        name, fit, _, predict, _, accuracy, *_ = (cell.strip() for cell in line.split("|"))
        rows.append((name, float(fit.split()[0]), float(predict.split()[0]), float(accuracy)))
    facts = dict(re.findall(r"^\* (processor|date|threads): (.*)$", page, re.MULTILINE))
    return rows, facts


def draw(path):
    """Bars of fit and predict, a row a package."""
    rows, facts = measured()
    names = [f"{name}\n{accuracy:.2f} % accuracy" for name, _, _, accuracy in rows]
    with plt.style.context(["default", "gpurbf.figures"]):
        plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "gpurbf"})
        plt.rcParams["font.sans-serif"] = ["DejaVu Sans", "Verdana", "Arial", "Helvetica"]
        figure, axes = plt.subplots(2, 1, figsize=(6.2, 4.2))
        for axis, what, column in zip(axes, ("fit 60,000", "predict 10,000"), (1, 2)):
            seconds = [row[column] for row in rows]
            axis.barh(names, seconds, 0.55, color=["C0", "0.75", "0.75"])
            for place, value in enumerate(seconds):
                axis.text(value + 0.015 * max(seconds), place, f"{value:.3g} s", va="center")
            axis.set(title=what, xlim=(0, 1.2 * max(seconds)), xticks=[])
            axis.spines[["left", "bottom"]].set_visible(False)
            axis.tick_params(length=0)
            axis.grid(visible=False)
            axis.invert_yaxis()
        figure.supxlabel(
            f"MNIST images, SVC with equal parameters; {facts['processor']}, "
            f"{facts['threads'].split()[0]} threads, {facts['date']}",
            fontsize=9,
            color="0.4",
        )
        figure.savefig(path, format="svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(HERE / "mnist.svg")
