"""Show the machine, its CPU's instructions, each backend, and versions."""

from __future__ import annotations

import argparse

from gpurbf.profiling import machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command has no options."""


def run(arguments: argparse.Namespace) -> None:
    """Print everything that a report of a problem should contain."""
    sections = {
        "machine": machine.hardware(),
        "backends": machine.backends(),
        "versions": machine.versions(),
    }
    for title, lines in sections.items():
        print(title)
        width = max(map(len, lines), default=0)
        for name, value in lines.items():
            print(f"  {name:{width}}  {value}")
