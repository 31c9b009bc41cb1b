"""Fit after fit of everything, mixed: memory, threads and open files stay what they were."""

import os
import threading

import numpy as np
import pytest
from callers import outputs
from sklearn.base import clone

from benchmarks.measure import megabytes
from tests.campaign.cases import AROUND, MODELS, NAMES, SEEDS, Storage, Table
from tests.campaign.rounds import campaign

# Fits a round; rounds of the test run, all alike, and with --hours; how many are for warming up.
FITS, FEW, MANY = 20, (3, 1), (60, 10)
_seen = []


@campaign("soak", FITS, seed=SEEDS, around=AROUND, name=NAMES)
def one_fit(seed, around, name):
    """A fit and its outputs, and what the process holds afterwards."""
    rng = np.random.default_rng(seed)
    values = str(rng.choice(["pixels", "sixteenths", "real", "offset"]))
    X, y = Table(seed, values, 300, int(rng.integers(1, 40)), 4).make()
    X = Storage(*map(str, (rng.choice(["float64", "float32"]), rng.choice(["C", "F"])))).of(X)
    with around():
        model = clone(MODELS[name]).set_params(backend=around.backend).fit(X, y)
        outputs(model, X)
    del model
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    _seen.append((megabytes("RssAnon") or 0.0, threading.active_count(), files))


@pytest.mark.skipif(megabytes("RssAnon") is None, reason="no RssAnon on this system")
def test_memory_threads_and_files_do_not_grow(rounds, share):
    """Each quarter by its median; fits before the first have warmed everything up."""
    _seen.clear()
    rounds.seconds = 0  # so many fits, however long they take
    total, warming = MANY if share else FEW
    for number in range(total):
        rounds.rounds = number if share else 0
        one_fit(rounds)
        if number == warming - 1:
            _seen.clear()
    warm = np.array(_seen)
    quarters = np.array([np.median(part, axis=0) for part in np.array_split(warm, 4)])
    first, last = quarters[0], quarters[-1]
    print(f"{len(warm)} fits, megabytes, threads, files by quarters: {quarters.tolist()}")
    assert last[0] < 1.02 * first[0]
    assert (last[1:] <= first[1:] + 1).all()
