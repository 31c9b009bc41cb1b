"""``python -m benchmarks NAME [--quick]`` and ``python -m benchmarks gpu-day DIR``."""

from __future__ import annotations

import argparse
import sys

from benchmarks import cli, gpu_day_cli
from gpurbf import BackendUnavailable
from gpurbf.cli import UserError


def main(argv: list[str]) -> int:
    """Run one benchmark, or all that a GPU is to show."""
    on_gpu = argv[:1] == ["gpu-day"]
    command = gpu_day_cli if on_gpu else cli
    parser = argparse.ArgumentParser(
        prog="benchmarks gpu-day" if on_gpu else "benchmarks",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_arguments(parser)
    try:
        command.run(parser.parse_args(argv[1:] if on_gpu else argv))
    except (UserError, BackendUnavailable) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
