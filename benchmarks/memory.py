"""How much memory this process has, and how much a piece of code takes in a fresh one."""

from __future__ import annotations

import json

from benchmarks.timing import run_python


def megabytes(what: str) -> float | None:
    """A line of Linux's /proc/self/status: "VmRSS", "VmHWM" or "RssAnon"; None elsewhere."""
    try:
        with open("/proc/self/status", encoding="utf-8") as lines:
            found = [line for line in lines if line.startswith(f"{what}:")]
    except OSError:
        return None
    return int(found[0].split()[1]) / 1024 if found else None


# The peak is reset after the set-up, so it is that of the measured lines alone.
_PEAK = """
import gc, json
from benchmarks.memory import megabytes
{setup}
gc.collect()
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = megabytes("VmRSS")
{measured}
print(json.dumps(megabytes("VmHWM") - before))
"""


def peak_memory(setup: str, measured: str) -> float | None:
    """Megabytes by which `measured` raises the peak of a fresh process above `setup`.

    Parameters
    ----------
    setup : str
        Python lines that read the data and import what is used.
    measured : str
        Python lines to measure.

    Returns
    -------
    megabytes : float or None
        None where Linux's ``/proc`` is not there.
    """
    if megabytes("VmHWM") is None:
        return None
    return float(json.loads(run_python(_PEAK.format(setup=setup, measured=measured))))
