"""The campaign: seconds in a test run, hours by `python -m pytest tests/campaign --hours 2`.

What it found is written to gpurbf-out/campaign.json when hours were given, after each property;
`python -m tests.campaign.report` puts it into docs/reliability.md.
"""

import datetime
import json
import os
import platform
import time

import pytest

import gpurbf
from gpurbf.runtime import cpu

try:
    import hypothesis
except ImportError:  # pytest's header says so
    hypothesis = None
    collect_ignore_glob = ["test_*.py"]

FOLDER = os.path.dirname(__file__)
_report = {}


def pytest_addoption(parser):
    parser.addoption("--hours", type=float, default=0.0, help="how long the campaign lasts")
    parser.addoption("--seed", type=int, help="of its first round; with --hours the time of day")


def pytest_configure(config):
    hours = config.getoption("hours", 0.0)
    seed = config.getoption("seed", None)
    if seed is None:
        seed = int(time.time()) if hours else 0
    if hasattr(config, "workerinput"):
        seed = config.workerinput.setdefault("campaign_seed", seed)
    elif hours:
        _report.update(
            gpurbf=gpurbf.__version__,
            date=datetime.date.today().isoformat(),
            hours=hours,
            seed=seed,
            processor=cpu.processor(),
            cores=os.cpu_count(),
            python=platform.python_version(),
            path=str(config.rootpath / "gpurbf-out" / "campaign.json"),
            tests=[],
        )
    config.campaign_seed = seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """pytest-xdist's workers begin at the controller's seed."""
    node.workerinput["campaign_seed"] = node.config.campaign_seed


def pytest_report_header(config):
    if hypothesis is None:
        return "campaign: left out, its cases are drawn by hypothesis"
    return f"campaign: {config.getoption('hours', 0.0):g} hours, seed {config.campaign_seed}"


def pytest_collection_modifyitems(config, items):
    config.campaign_size = sum(str(item.path).startswith(FOLDER) for item in items)


@pytest.fixture
def share(request):
    """Seconds that a test of the campaign may take; 0 without --hours."""
    config = request.config
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    return 3600 * config.getoption("hours", 0.0) * workers / config.campaign_size


@pytest.fixture
def rounds(request, share):
    """The rounds of a property, whose figures go into the report."""
    from tests.campaign.rounds import Rounds

    made, began = Rounds(share, request.config.campaign_seed), time.monotonic()
    yield made
    found = {name: getattr(made, name) for name in ("kind", "cases", "rounds", "failures")}
    found["seconds"] = round(time.monotonic() - began, 1)
    request.node.user_properties.append(("campaign", found))


def pytest_runtest_logreport(report):
    if not _report or (report.when != "teardown" and not report.failed):
        return
    found = dict(report.user_properties).get("campaign")
    if found is None:
        if report.when == "call" or not report.failed:
            return  # its teardown comes, or it is no property
        found = {"kind": "", "cases": 0, "failures": [{"said": str(report.longrepr)[-4000:]}]}
    _report["tests"].append({"name": report.nodeid.rpartition("::")[2], **found})
    path = _report["path"]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({k: v for k, v in _report.items() if k != "path"}, file, indent=1)
