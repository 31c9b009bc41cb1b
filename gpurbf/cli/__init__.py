"""The command line: ``python -m gpurbf COMMAND``, one module per command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from gpurbf import __version__

__all__ = ["BACKEND", "COMMANDS", "UserError", "exit_status", "main", "module_of"]


# Each command is a module of this package ("-" becomes "_"), imported only if it is used. It has
# add_arguments(parser), run(arguments), and a docstring that begins with the text given here.
COMMANDS = {
    "check-gpu": "Check every kernel of the GPU backends against NumPy, and time them.",
    "classify": "Classify images: fit, predict, show accuracy and times, and draw the mistakes.",
    "info": "Show the machine, its CPU's instructions, each backend, and versions.",
    "profile": "Show where the time of a fit and a prediction goes, and how fast they could be.",
    "run": "Run a program unchanged, with scikit-learn's SVC replaced by gpurbf's.",
    "warmup": "Compile all kernels for this CPU now, so that no first call has to wait.",
}


# Of the option --backend of several commands.
BACKEND = "where the kernel is computed (default: auto)"


def module_of(command: str) -> str:
    """The name of the module of a command."""
    return f"gpurbf.cli.{command.replace('-', '_')}"


class UserError(Exception):
    """An error that the user can put right: shown as one line, without a traceback."""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help shows what there is)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    status : int
        That of `exit_status`.
    """
    # None if the caller has closed it: libraries write to it, and files would take its number.
    sys.stdout, sys.stderr = (s or open(os.devnull, "w") for s in (sys.stdout, sys.stderr))
    argv = sys.argv[1:] if argv is None else list(argv)
    command = next((each for each in argv if each in COMMANDS), "")
    return exit_status(_run, argv, f"gpurbf {command}".strip())


def exit_status(run: Callable[[Any], Any], arguments: Any, program: str) -> int:
    """Run a command: 0, or 2 after an error that the user can put right, 130 after an interrupt.

    It is 1 if the reader of the output has closed the pipe.
    """
    from gpurbf.runtime.errors import BackendUnavailable, NoCacheFolder

    try:
        try:
            run(arguments)
        finally:
            _flush()
    except BrokenPipeError:
        return 1
    except (UserError, BackendUnavailable, NoCacheFolder, OSError) as error:
        said = " ".join(str(error).splitlines())  # scikit-learn's may have several lines
        print(f"{program}: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    return 0


def _flush() -> None:
    """Write what was printed; where this fails, Python must not try it again at exit."""
    try:
        with suppress(ValueError):  # a program may have closed its output
            print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _run(argv: list[str]) -> None:
    parser = _Parser(prog="gpurbf", description="Fast SVC and RBF networks for scikit-learn.")
    parser.add_argument("--version", action="version", version=f"gpurbf {__version__}")
    parser.set_defaults(run=lambda _: parser.print_help())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name in argv:  # the other modules are not needed
            module = importlib.import_module(module_of(name))
            command.description = module.__doc__
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    if arguments.command != "run" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # not all terminals know × and ᵀ
    arguments.run(arguments)
