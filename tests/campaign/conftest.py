"""The campaign: seconds in a test run, hours by `python -m pytest tests/campaign --hours 2`.

What it found is written to gpurbf-out/campaign.json when hours were given, after each property;
`python -m tests.campaign.report` puts it into docs/reliability.md.
"""

import datetime
import importlib.util
import json
import os
import platform
import time

import pytest

import gpurbf
from gpurbf.runtime import cpu

# pytest's header says so.
collect_ignore_glob = [] if importlib.util.find_spec("hypothesis") else ["test_*.py"]
FOLDER = os.path.dirname(__file__)
_report = {}


def pytest_addoption(parser):
    parser.addoption("--hours", type=float, default=0.0, help="how long the campaign lasts")
    parser.addoption("--seed", type=int, help="of its first round; with --hours the time of day")


def pytest_configure(config):
    # Where all tests are run this file is found too late for options of its own.
    hours, seed = config.getoption("hours", 0.0), config.getoption("seed", None)
    if seed is None:
        seed = int(time.time()) if hours else 0
    config.campaign_seed = getattr(config, "workerinput", {}).get("campaign_seed", seed)
    if hours and not hasattr(config, "workerinput"):
        run = (
            f"{datetime.date.today()}, gpurbf {gpurbf.__version__}, {hours:g} h on "
            f"{cpu.processor()}, {os.cpu_count()} cores, "
            f"Python {platform.python_version()}, seeds from {seed} on."
        )
        _report.update(run=run, tests=[], folder=str(config.rootpath / "gpurbf-out"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """pytest-xdist's workers begin at the controller's seed."""
    node.workerinput["campaign_seed"] = node.config.campaign_seed


def pytest_report_header(config):
    left_out = ", left out: its cases are drawn by hypothesis" if collect_ignore_glob else ""
    return f"campaign: {config.option.hours:g} hours, seed {config.campaign_seed}{left_out}"


@pytest.fixture
def share(request):
    """Seconds that a test of the campaign may take; 0 without --hours."""
    config = request.config
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    tests = sum(str(item.path).startswith(FOLDER) for item in request.session.items)
    return 3600 * config.getoption("hours", 0.0) * workers / tests


@pytest.fixture
def rounds(request, share):
    """The rounds of a property, whose figures go into the report."""
    from tests.campaign.rounds import Rounds

    made, began = Rounds(share, request.config.campaign_seed), time.monotonic()
    yield made
    found = vars(made) | {"seconds": round(time.monotonic() - began, 1)}
    request.node.user_properties.append(("campaign", found))


def pytest_runtest_logreport(report):
    found = dict(report.user_properties).get("campaign")
    if found is None and report.failed and report.when != "call":  # else its teardown comes
        said = str(report.longrepr)[-4000:]
        found = {"kind": "crashed", "cases": 0, "failures": [{"said": said}]}
    if _report and found:
        _report["tests"].append({"name": report.nodeid.rpartition("::")[2], **found})
        os.makedirs(_report["folder"], exist_ok=True)
        with open(f"{_report['folder']}/campaign.json", "w", encoding="utf-8") as file:
            json.dump(_report, file, indent=1)
