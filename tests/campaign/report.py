"""Write the last campaign's results from gpurbf-out/campaign.json into docs/reliability.md.

`python -m tests.campaign.report` after `python -m pytest tests/campaign --hours 2`.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.report import Report

ROOT = Path(__file__).parents[2]


def main(path=ROOT / "gpurbf-out" / "campaign.json", page=ROOT / "docs" / "reliability.md"):
    """Write the table between the marks of the page."""
    found = json.loads(Path(path).read_text(encoding="utf-8"))
    kinds = defaultdict(list)
    for test in found["tests"]:
        kinds[test["kind"]].append(test)
    report = Report("Reliability")
    report.text(found["run"])
    report.table(
        ("kind", "properties", "cases", "minutes", "failures"),
        [
            (
                kind,
                len(tests),
                f"{sum(test['cases'] for test in tests):,}",
                f"{sum(test.get('seconds', 0) for test in tests) / 60:.0f}",
                sum(len(test["failures"]) for test in tests),
            )
            for kind, tests in kinds.items()
        ],
    )
    for test in found["tests"]:
        for failure in test["failures"]:
            first = " ".join(filter(None, failure["said"].splitlines()[:3]))
            report.text(f"* `{test['name']}`, seed {failure.get('seed', '–')}: {first}")
    report.write(page)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
