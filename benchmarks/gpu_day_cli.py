"""Check and measure everything on a GPU, step by step, unattended; results come as they are found.

Every step is a process of its own with a limit of time, so nothing that one does, a crash or a
hang, ends the day. DIR/gpu-day.md gets each step's output when it ends and a table last; `bench
gpu` writes DIR/gpu.md. Without a GPU it is a rehearsal on the CPU and the report says so.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpurbf.cli import UserError

_ROOT = Path(__file__).parents[1]
_TESTS = _ROOT / "tests"
# Seconds.
_LIMITS = {"versions": 120, "table": 300}
_LIMIT = 180


class Step(NamedTuple):
    """A command, its limit in seconds, and what it adds to the environment."""

    name: str
    command: list[str]
    limit: float
    environment: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("out", metavar="DIR", type=Path, help="where the report goes")
    parser.add_argument(
        "--data",
        "--data-home",
        dest="data_home",
        default=os.environ.get("GPURBF_TEST_DATA"),
        metavar="DIR",
        help="holds MNIST (default: $GPURBF_TEST_DATA, else as gpurbf.datasets finds it)",
    )
    parser.add_argument(
        "--whole", action="store_true", help="then `bench gpu` whole and compute-sanitizer: an hour"
    )
    parser.add_argument(
        "--only", metavar="STEP", action="append", help="this step; may be repeated"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the steps one after the other; the status is an error only if none could be run."""
    page = arguments.out / "gpu-day.md"
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        page.write_text("# A day on a GPU\n\n", encoding="utf-8")
    except OSError as error:
        raise UserError(str(error)) from error
    steps = list(_steps(arguments))
    wanted = arguments.only or [step.name for step in steps]
    if unknown := set(wanted) - {step.name for step in steps}:
        names = ", ".join(step.name for step in steps)
        raise UserError(f"no step {', '.join(sorted(unknown))}: there are {names}")
    _say(page, _conditions())
    rows = []
    for step in steps:
        if step.name not in wanted:
            continue
        _say(page, f"## {step.name}")
        begin = time.monotonic()
        result, output = _run(step)
        seconds = time.monotonic() - begin
        rows.append((step.name, result, f"{seconds:.0f}"))
        _say(page, f"{output.strip()}\n\n{result}, {seconds:.0f} s")
    from gpurbf.profiling.profiler import markdown_table

    _say(page, "## Summary\n\n" + markdown_table(("step", "result", "seconds"), rows))
    _say(page, _conditions())
    print(f"written: {page}")


def _say(page: Path, text: str) -> None:
    """Print it and add it to the report at once."""
    print(text, end="\n\n", flush=True)
    with page.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n\n")


def _conditions() -> str:
    """Whether any of this was measured on a GPU."""
    from gpurbf.layer import backends

    why, today = backends.no_gpu(), datetime.date.today().isoformat()
    if why is None:
        return f"On a machine with a GPU, {today}."
    return f"**Rehearsal, not measured on a GPU** ({why}), {today}."


def _steps(arguments: argparse.Namespace) -> Iterator[Step]:
    from benchmarks.gpu_day import STEPS

    python, out = [sys.executable, "-u"], str(arguments.out)

    def alone(name: str, title: str = "", **environment: str) -> Step:
        code = f"from benchmarks.gpu_day import STEPS; STEPS[{name!r}]({arguments.data_home!r})"
        limit = _LIMITS.get(name, _LIMIT)
        return Step(title or name, [*python, "-c", code], limit, environment)

    yield from map(alone, STEPS)
    benchmarks = [*python, "-m", "benchmarks"]
    home = ["--data", arguments.data_home] if arguments.data_home else []
    quick = [*benchmarks, "gpu", "--quick", "--out", str(arguments.out / "quick")]
    yield Step("bench gpu --quick", quick, 300, {})
    pytest = [*python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(_TESTS)]
    from gpurbf.layer import backends

    there = backends.no_gpu() is None
    if _TESTS.is_dir() and importlib.util.find_spec("pytest"):
        names = "cupy or cuda" if there else "test_profiles"
        required = {"GPURBF_REQUIRE": "cupy,numba-cuda"} if there else {}
        yield Step("tests", [*pytest, "-k", names], 600, required)
    if there:  # the tile for Hopper; other GPUs say that they cannot
        for name in ("products", "table"):
            yield alone(name, f"{name}, wgmma", GPURBF_GPU_KERNEL="wgmma")
    if not arguments.whole:
        return
    yield Step("bench gpu", [*benchmarks, "gpu", *home, "--out", out], 3000, {})
    if sanitizer := shutil.which("compute-sanitizer"):
        code = "from benchmarks.gpu_day import STEPS; STEPS['profiles'](None)"
        for tool in ("memcheck", "racecheck"):
            command = [sanitizer, f"--tool={tool}", "--error-exitcode=1", *python, "-c", code]
            yield Step(tool, command, 900, {})


def _run(step: Step) -> tuple[str, str]:
    """What came of a step and what it printed; all that it started ends with it."""
    process = subprocess.Popen(
        step.command,
        env=os.environ | {"PYTHONPATH": str(_ROOT)} | step.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=step.limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return f"**stopped** after {step.limit:g} s", process.communicate()[0]
    except BaseException:  # the user's Ctrl-C reaches this process alone
        _end(process)
        raise
    if process.returncode:
        return f"**failed** with status {process.returncode}", output
    return "done", output


def _end(process: subprocess.Popen) -> None:
    """End a process and those that it has started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
