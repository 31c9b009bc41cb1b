"""One property for seconds or for hours: rounds of hypothesis, each of a seed of its own."""

import functools
import traceback
import warnings
from time import monotonic

import hypothesis
import pytest

# A property that has failed in so many ways is not tried any longer.
MOST_FAILURES = 5
# At the end of a kind: left out of the test run.
HOURS_ONLY = ", hours only"


def campaign(kind, examples, **strategies):
    """Make a test of a check: called with what the strategies draw, `examples` times a round."""

    def decorate(check):
        def test(rounds):
            rounds.run(kind, check, examples, strategies)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, __name__
        return test

    return decorate


class Rounds:
    """The rounds of one property: one, or one after the other until its seconds are over."""

    def __init__(self, seconds, first):
        self.seconds, self.first = seconds, first
        self.kind, self.cases, self.rounds, self.failures = "crashed", 0, 0, []

    def run(self, kind, check, examples, strategies):
        """All rounds; the first failure is raised in the end, all are in the report."""
        if kind.endswith(HOURS_ONLY) and not self.seconds:
            pytest.skip("takes long: with --hours")
        self.kind, end = kind.removesuffix(HOURS_ONLY), monotonic() + self.seconds
        first, seen = None, set()
        while True:
            seed = self.first + self.rounds
            try:
                self._round(check, examples, strategies, seed)
            except Exception as error:
                first = first or error
                where = traceback.extract_tb(error.__traceback__)[-1]
                if (key := (type(error), where.filename, where.lineno)) not in seen:
                    seen.add(key)
                    said = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])]
                    print(f"seed {seed}:", *said, sep="\n")
                    self.failures.append({"seed": seed, "said": "\n".join(said)[:4000]})
            self.rounds += 1
            if monotonic() >= end or len(seen) >= MOST_FAILURES:
                break
        print(f"{self.cases} cases, seeds {self.first} to {seed}")
        if first is not None:
            raise first

    def _round(self, check, examples, strategies, seed):
        @functools.wraps(check)
        def counted(**case):
            self.cases += 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                check(**case)

        settings = hypothesis.settings(
            max_examples=examples,
            derandomize=False,
            report_multiple_bugs=False,
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        hypothesis.seed(seed)(settings(hypothesis.given(**strategies)(counted)))()
