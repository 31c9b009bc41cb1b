"""Benchmarks: what is compared runs in turn in one process, and is verified before it is timed.

A benchmark is a module with ``TITLE`` and ``run(report, quick, data_home)``. Its results go
between the marks of ``<name>.md``, so that the prose around them stays.
"""

from __future__ import annotations

import datetime
import importlib
import subprocess
from pathlib import Path

from benchmarks.report import Report
from gpurbf.profiling import machine

__all__ = ["BENCHMARKS", "run_benchmark"]


BENCHMARKS = (
    "layer", "rbf", "rbf_cv", "cg", "fsvc", "svc", "defaults", "pipelines", "profile", "paper",
    "scale", "dask", "scaling", "gpu",
)  # fmt: skip


def run_benchmark(name: str, quick: bool, data_home: str | None, folder: Path) -> None:
    """Run a benchmark, print what it finds, and write it to ``folder/name.md``.

    Parameters
    ----------
    name : str
        One of ``BENCHMARKS``.
    quick : bool
        Small sizes: shows that it runs, the figures mean nothing.
    data_home : str or None
        A folder that holds MNIST, see :func:`gpurbf.datasets.load_mnist`.
    folder : Path
        For the page, its tables and its pictures.
    """
    module = importlib.import_module(f"benchmarks.{name}")
    report = Report(module.TITLE, folder / f"{name}.md")
    report.text(_conditions(name, quick))
    module.run(report, quick, data_home)
    report.write(folder / f"{name}.md")
    print(f"written: {folder / name}.md")


def _conditions(name: str, quick: bool) -> str:
    """The machine, the versions, the code and the command of a run, folded under one line."""
    describe = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    facts = machine.hardware() | {
        "versions": ", ".join(f"{key} {value}" for key, value in machine.versions().items()),
        "date": datetime.date.today().isoformat(),
        "commit": commit or "unknown",
        "command": f"python -m benchmarks {name}" + " --quick" * quick,
    }
    title = "Measured {date} on {processor}, {threads}, commit {commit}: machine and versions"
    lines = "\n".join(f"* {key}: {value}" for key, value in facts.items())
    return f"<details>\n<summary>{title.format(**facts)}</summary>\n\n{lines}\n\n</details>"
