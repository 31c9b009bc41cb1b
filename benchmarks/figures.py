"""Figures of benchmarks: lines named at their ends, in colours that everyone can tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# Okabe and Ito's colours.
_GREY = "#777777"
COLOURS = {
    "naive": "#000000",
    "plain": "#E69F00",
    "float64": "#56B4E9",
    "float32": "#0072B2",
    "8-bit": "#009E73",
}
_GPUS = ("cupy", "numba-cuda", "untiled GPU")  # broken lines
# Under words, so that no line runs through them.
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
_MARKS = {"naive": "s", "plain": "D", "float64": "^", "float32": "o", "8-bit": "v"}


def _kind(name: str) -> str:
    """Which colour and mark a way gets."""
    first = name.split()[0].rstrip(",")
    return first if first in COLOURS or ", " not in name else name.split(", ")[1]


def speed_ups(found: Mapping[str, Mapping[int, float]], base: str) -> dict[str, dict[int, float]]:
    """Divide the base's times, or its last one where it was not measured, by each time."""
    last = list(found[base].values())[-1]
    return {
        name: {size: found[base].get(size, last) / value for size, value in series.items()}
        for name, series in found.items()
        if name != base
    }


def sweep(
    found: Mapping[str, Mapping[int, float]],
    base: str,
    published: Mapping[str, float],
    label: str,
    figure: Any,
) -> None:
    """Synapse times, and their ratios to the base, over powers of two."""
    figure.set_size_inches(11, 5)
    times, gains = figure.subplots(1, 2)
    sizes = sorted({size for series in found.values() for size in series})
    named_lines(times, {**found, **{name: {sizes[-1]: value} for name, value in published.items()}})
    for value in published.values():
        times.axhline(value, color=_GREY, ls="--", lw=1, zorder=1)
    times.set(ylabel="ns a synapse", title="Synapse time (less is better)")
    named_lines(gains, speed_ups(found, base))
    gains.set(ylabel="times", title=f"Speed-up against the {base}")
    for axis in (times, gains):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel(label)
        axis.set_xticks(sizes, [f"{size}" for size in sizes], fontsize=7)
        axis.set_xlim(sizes[0] / 1.2, sizes[-1] * 2 ** (0.38 * len(sizes)))  # room for names
        _plain_numbers(axis)
        plain(axis)


def ranking(medians: Mapping[str, float], published: Mapping[str, float], figure: Any) -> None:
    """Every way in order of its time; published figures hollow."""
    order = sorted([*medians.items(), *published.items()], key=lambda item: -item[1])
    figure.set_size_inches(9, 1 + 0.3 * len(order))
    axis = figure.subplots()
    for i, (name, value) in enumerate(order):
        kind = _kind(name) if name in medians else ""
        colour, mark = COLOURS.get(kind, _GREY), _MARKS.get(kind, "D")
        axis.plot(value, i, mark, color=colour, markerfacecolor=colour if kind else "none")
        axis.annotate(
            f"{value:.3g}", (value, i), (8, 0), textcoords="offset points", va="center", fontsize=8
        )
    axis.set_yticks(range(len(order)), [name for name, _ in order])
    axis.set_xscale("log")
    axis.set_xlim(order[-1][1] / 2, order[0][1] * 3)
    axis.set(xlabel="ns a synapse (less is better)")
    axis.xaxis.set_major_formatter("{x:g}")
    plain(axis)


def tiles(found: Mapping[str, Mapping[str, float]], figure: Any) -> None:
    """A panel a backend: time over its candidates, against its default."""
    names = list(dict.fromkeys(way.partition(",")[0] for way in found))
    figure.set_size_inches(4 * len(names), 4.5)
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axis, name in zip(panels, names):
        ways = {way: series for way, series in found.items() if way.partition(",")[0] == name}
        default, *order = next(iter(ways.values()))
        for way, series in ways.items():
            kind = _kind(way)
            ratios = [series[tile] / series[default] for tile in order]
            axis.plot(ratios, label=kind, color=COLOURS[kind], marker=_MARKS[kind])
        axis.axhline(1, color=_GREY, lw=1)
        axis.set_xticks(range(len(order)), order, rotation=60, ha="right", fontsize=8)
        axis.set_title(name)
        axis.set_yscale("log")
        plain(axis)
    panels[0].set_ylabel("time against the default tile")
    ratio_ticks(panels[0])
    panels[-1].legend(frameon=False)


def cuts(found: Mapping[str, Mapping[int, float]], figure: Any) -> None:
    """Time of all BNLs over that of one launch."""
    figure.set_size_inches(7, 4.5)
    axis = figure.subplots()
    named_lines(axis, found)
    sizes = list(next(iter(found.values())))
    axis.axhline(1, color=_GREY, lw=1)
    axis.annotate(
        "one launch", (sizes[0], 1), (2, -11), textcoords="offset points", color=_GREY, fontsize=8
    )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [f"{size}" for size in sizes])
    axis.set_xlim(sizes[0] / 1.2, sizes[-1] * 3)
    axis.set(xlabel="M of the M × M BNLs", ylabel="time against one launch")
    ratio_ticks(axis)
    plain(axis)


def named_lines(
    axis: Any, found: Mapping[str, Mapping[int, float]], colours: Mapping[str, str] = COLOURS
) -> None:
    """One line a way on a log scale, its name at its end; names that would meet are moved apart."""
    ends, colour = {}, {}
    for name, series in found.items():
        ends[name] = list(series.items())[-1]
        colour[name] = colours.get(name) or colours.get(_kind(name), _GREY)
        mark = _MARKS.get(_kind(name), "o" if name in colours else "")
        line = "--" if name.startswith(_GPUS) else "-"
        style = {"color": colour[name], "marker": mark, "ms": 4}
        axis.plot(list(series), list(series.values()), ls=line, **style)
    everything = [value for series in found.values() for value in series.values()]
    gap = 0.045 * np.log(max(everything) / min(everything) + 1e-9)
    height = -np.inf
    for name, (size, value) in sorted(ends.items(), key=lambda item: item[1][1]):
        height = max(np.log(value), height + gap)
        axis.annotate(
            name, (size, np.exp(height)), (8, 0), textcoords="offset points", va="center",
            color=colour[name], fontsize=8, bbox=_PAPER,
        )  # fmt: skip


def ratio_ticks(axis: Any) -> None:
    """Ratios as plain numbers."""
    from matplotlib.ticker import NullFormatter

    low, high = axis.get_ylim()
    ticks: list[float] = [1]
    for candidate in (2, 0.5, 5, 0.2, 10, 0.1, 20, 1.5, 0.7, 3, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95):
        near = min(abs(np.log(candidate / tick)) for tick in ticks)
        if low < candidate < high and near > 0.06 * np.log(high / low):
            ticks.append(candidate)
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.yaxis.set_minor_formatter(NullFormatter())


def _plain_numbers(axis: Any) -> None:
    """0.01 rather than a power of ten, and 2 and 5 between where there are few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_ylim()
    steps = (1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)
    axis.yaxis.set_major_locator(LogLocator(subs=steps))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())


def plain(axis: Any) -> None:
    """No box, a light grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(True, color="#e5e5e5", lw=0.6)
    axis.set_axisbelow(True)
