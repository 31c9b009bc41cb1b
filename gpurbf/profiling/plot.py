"""A profile as a picture: time by stage, and in each bar what the ceilings would need."""

from __future__ import annotations

from typing import Any

from gpurbf._stages import STAGES
from gpurbf.profiling.result import PHASES

__all__ = ["draw"]

_COLOR, _IDEAL = "#8fb8de", "#1f4e79"


def draw(profile: Any, figure: Any) -> None:
    """Draw a profile into a figure: training on the left, prediction on the right."""
    figure.suptitle(profile.title, fontsize=11)
    for axis, phase in zip(figure.subplots(1, len(PHASES), sharey=True), PHASES):
        _phase(axis, profile, phase)
    figure.axes[0].set_yticks(range(len(STAGES)), STAGES)
    figure.axes[0].invert_yaxis()
    figure.axes[-1].legend(loc="lower right", frameon=False, fontsize=8)


def _phase(axis: Any, profile: Any, phase: str) -> None:
    """The bars of one phase, each split into its parts."""
    wall = profile.seconds[phase]
    unit, scale = ("s", 1.0) if wall >= 1 else ("ms", 1000.0)
    for place, stage in enumerate(STAGES):
        rows = [row for row in profile.rows if (row.phase, row.stage) == (phase, stage)]
        total, parts = rows[0], rows[1:]
        left = 0.0
        for row in parts:
            length = scale * row.seconds
            axis.barh(place, length, 0.68, left, color=_COLOR, edgecolor="white", linewidth=1)
            ideal = length * min(1.0, row.efficiency) if row.ceiling else 0.0
            axis.barh(place, ideal, 0.3, left, color=_IDEAL)
            left += length
        axis.text(left + 0.01 * scale * wall, place, _label(total, parts), va="center", fontsize=8)
    axis.set(title=f"{phase}, {scale * wall:.3g} {unit}", xlabel=unit)
    longest = max(row.seconds for row in profile.rows if row.phase == phase)
    axis.set_xlim(0, 1.5 * scale * longest)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    # Empty bars that name the two colors.
    axis.barh(0, 0, color=_COLOR, label="time, by part")
    axis.barh(0, 0, color=_IDEAL, label="time at the machine's ceiling")


def _label(total: Any, parts: list[Any]) -> str:
    """Share and longest part of a stage."""
    if not total.seconds:
        return "none on a CPU" if total.stage == "host to device" else ""
    if total.share < 0.001:
        return "< 0.1 %"
    longest = parts[0]
    text = f"{100 * total.share:.1f} %"
    if total.share < 0.05:
        return text
    near = f"\nat {100 * longest.efficiency:.0f} % of the ceiling" if longest.ceiling else ""
    return f"{text}, {longest.part}{near}"
