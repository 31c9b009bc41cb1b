"""Run a program unchanged, with scikit-learn's SVC replaced by gpurbf's."""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from pathlib import Path
from types import ModuleType

from gpurbf.cli import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="module", action="store_true", help="program is a module's name")
    # One argument, as argparse would drop a "--" between two.
    parser.add_argument("program", nargs=argparse.PARSER, help="its path, then its own arguments")


def run(arguments: argparse.Namespace) -> None:
    """Run the program as ``python SCRIPT`` would."""
    script, *rest = arguments.program[arguments.program[0] == "--" :]
    if not (arguments.module or Path(script).is_file() or Path(script, "__main__.py").is_file()):
        raise UserError(f"no file {script}.")
    sys.path.insert(0, os.getcwd() if arguments.module else str(Path(script).resolve().parent))
    if arguments.module and importlib.util.find_spec(script.partition(".")[0]) is None:
        raise UserError(f"no module {script}.")
    from gpurbf.patching import patch_sklearn

    patch_sklearn()
    sys.argv = [script, *rest]
    try:
        if arguments.module:
            if not _is_module(script):
                raise UserError(f"no module {script}, or a package without a __main__.")
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        elif script.endswith(".py") and Path(script).is_file():
            # Not by runpy, whose module ends before the program's threads and exit handlers.
            path = os.path.abspath(script)
            # multiprocessing unpickles by the second name what a spawned process returns.
            main = sys.modules["__main__"] = sys.modules["__mp_main__"] = ModuleType("__main__")
            main.__file__ = path
            exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(main))
        else:
            runpy.run_path(os.path.abspath(script), run_name="__main__")
    except OSError:  # only those of our own commands are a line, or silent
        sys.excepthook(*sys.exc_info())  # maybe the program's own
        sys.exit(1)


def _is_module(name: str) -> bool:
    """Whether Python can run it; imports the packages that it is in."""
    try:
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # what a package imports
            raise
        return False
    return spec is not None
