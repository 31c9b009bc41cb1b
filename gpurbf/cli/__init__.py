"""The command line: ``python -m gpurbf COMMAND``, one module a command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from gpurbf.backends import BackendUnavailable

__all__ = ["COMMANDS", "UserError", "main"]

# A module has add_arguments(parser) and run(arguments); its docstring is the command's help.
COMMANDS = {
    "classify": "gpurbf.cli.classify",
    "info": "gpurbf.cli.info",
    "profile": "gpurbf.cli.profile",
    "bench": "gpurbf.cli.bench",
    "tune": "gpurbf.cli.tune",
    "run": "gpurbf.cli.run",
}


class UserError(Exception):
    """What the user can put right: shown as one line, without a traceback."""


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
        0, or 2 after an error that the user can put right, or 130 after an interrupt.
    """
    parser = _Parser(prog="gpurbf", description="RBF networks for scikit-learn, fast.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {name: importlib.import_module(path) for name, path in COMMANDS.items()}
    for name, module in modules.items():
        summary = (module.__doc__ or "").splitlines()[0]
        module.add_arguments(commands.add_parser(name, help=summary, description=module.__doc__))
    arguments = parser.parse_args(argv)
    try:
        modules[arguments.command].run(arguments)
    except (UserError, BackendUnavailable) as error:
        print(f"gpurbf {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"gpurbf {arguments.command}: interrupted", file=sys.stderr)
        return 130
    return 0
