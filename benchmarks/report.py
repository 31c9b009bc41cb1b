"""Pages of results, whose prose around what a program wrote stays."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gpurbf.profiling.profiler import markdown_table

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


class Report:
    """The results of a benchmark: printed as they come, then written into a page.

    Parameters
    ----------
    title : str
        Of the page, if there is none yet.
    page : Path, optional
        Where `keep` writes.
    """

    def __init__(self, title: str, page: Path | None = None) -> None:
        self.title = title
        self.page = page
        self._parts: list[str] = []
        self._tables: dict[str, list[Sequence[Any]]] = {}
        self._figures: dict[str, Callable[[Any], None]] = {}

    def text(self, text: str) -> None:
        """A paragraph or a heading."""
        print(text, end="\n\n", flush=True)
        self._parts.append(text)

    def table(
        self, header: Sequence[str], rows: Iterable[Sequence[Any]], name: str | None = None
    ) -> None:
        """A table; with a name it is also written as `name`.csv beside the page."""
        rows = list(rows)
        self.text(markdown_table(header, rows))
        if name is not None:
            self._tables[name] = [header, *rows]

    def figure(self, name: str, caption: str, plot: Callable[[Any], None]) -> None:
        """`name`.png and `name`.svg as ``plot(figure)`` draws it, if Matplotlib is installed."""
        self._figures[name] = plot
        self._parts.append(f"![{caption}]({name}.png)")

    def keep(self) -> None:
        """Write what there is so far, for a benchmark that may not come to its end."""
        if self.page is not None:
            self.write(self.page)

    def write(self, page: Path) -> None:
        """Put everything between the marks of a page, which is made if there is none."""
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.exists():
            page.write_text(f"# {self.title}\n\n{BEGIN}\n{END}\n", encoding="utf-8")
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            raise ValueError(f"{page} lacks the marks {BEGIN} and {END}.")
        results = "\n\n".join(self._parts)
        page.write_text(f"{before}{BEGIN}\n\n{results}\n\n{END}{after}", encoding="utf-8")
        for name, lines in self._tables.items():
            with open(page.parent / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
        self._draw(page.parent)

    def _draw(self, folder: Path) -> None:
        """The figures, as files beside the page."""
        if not self._figures:
            return
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError:
            print("no pictures: get Matplotlib with `python -m pip install matplotlib`")
            return
        for name, plot in self._figures.items():
            figure = Figure(figsize=(9, 4), layout="constrained")
            FigureCanvasAgg(figure)
            plot(figure)
            figure.savefig(folder / f"{name}.png", dpi=100)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
