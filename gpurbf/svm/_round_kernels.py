"""Rounds of SVC's solver on tiles, one after the other in a call that does not hold Python's lock.

A round chooses a working set, evaluates the kernel between its members, steps inside it, and
updates the gradient of all from rows of K, of which it evaluates those that are not in memory.
"""

from typing import NamedTuple

import numpy as np

from gpurbf.layer.backends.numba.consumers import Store
from gpurbf.layer.backends.numba.driver import CallWords, LayerWords, evaluate_rows
from gpurbf.layer.backends.numba.packing import pack_centers
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import address, call_at, keep_alive
from gpurbf.svm import _smo_kernels as smo
from gpurbf.svm import _working_set_kernels as working_sets

# What Python does next: a round of its own if the problem has not ended, what it does between two
# calls, memory for rows, or more steps inside the set.
LOOK, PAUSE, GROW, STEP = range(4)

_inner = inner(error_model="numpy")


class Block(NamedTuple):
    """The kernel between members of a set, and the layer whose centers they are."""

    K: np.ndarray  # float32, room for the largest set
    columns: np.ndarray  # words of `packing.Columns`, `driver.LayerWords` and `driver.CallWords`
    layer: np.ndarray
    plan: np.ndarray  # serves the layers of classes, too
    rows: np.ndarray  # words of `_smo_kernels.RowWords`
    about: np.ndarray  # memory for what `solve_block` returns
    step: int  # addresses of C functions of `_smo_kernels`
    minus: int


class ClassRows(NamedTuple):
    """Rows of K over a class in memory, see `row_cache.RowCache`, and the layer that makes more."""

    rows: np.ndarray  # without columns if those of the other class are over both
    slots: working_sets.Slots
    layer: np.ndarray


_M, _STRIP = (LayerWords._fields.index(name) for name in ("m", "columns"))
_PLAN, _CHOSEN = len(CallWords._fields), CallWords._fields.index("chosen")
_OUT, _PLACES, _ROW_BYTES = (_PLAN + Store._fields.index(n) for n in ("out", "places", "row_bytes"))


@_inner
def _evaluate(layer, plan, chosen, out, row_bytes, places, memory):
    """Evaluate rows of samples into memory at an address, or into the given places there."""
    plan[_CHOSEN], plan[_OUT], plan[_ROW_BYTES] = address(chosen), out, row_bytes
    plan[_PLACES] = address(places) if len(places) else 0
    # For a literal 0, Numba would compile the function once more.
    evaluate_rows(np.intp(0), len(chosen), address(layer), address(plan), memory)


@_inner
def _between(block, samples, begin, end, before, memory):
    """K between samples; all but those from begin to end have their places from the last call."""
    n = len(samples)
    if n != before:
        begin, end = 0, n
    rows, left, right = block.layer[_STRIP], begin, end
    if begin % rows or (end % rows and end < n):
        left, right = 0, n
    if left < right:
        columns, layer = address(block.columns), address(block.layer)
        pack_centers(columns, layer, address(samples), left, right, memory)
    block.layer[_M] = n
    K = block.K[: n * n].reshape(n, n)
    out = address(K) + 4 * begin * n
    _evaluate(block.layer, block.plan, samples[begin:end], out, 4 * n, samples[:0], memory)
    first, last = (end, n) if begin == 0 else (0, begin)
    working_sets.mirror_rows(K, begin, end, first, last)
    return K


@_inner
def _subtract(own, block, samples, members, change, f, memory):
    """``f -= change @ K[members]`` over the class; returns how many rows were evaluated."""
    start, evaluated, rows, apart = 0, 0, address(own.rows), own.rows.shape[1]
    while start < len(members) and len(f) > 0:
        places, missing, where = working_sets.place(members[start:], samples, own.slots)
        if len(missing):
            _evaluate(own.layer, block.plan, missing, rows, 4 * apart, where, memory)
        n, part = len(places), change[start:]
        call_at(block.minus, rows, apart, address(places), n, address(part), address(f), 0, len(f))
        keep_alive(places)
        start, evaluated = start + n, evaluated + len(missing)
    return evaluated


@cached(nogil=True, error_model="numpy")
def rounds(pair, block, a, b, tol, rounding, size, limit, state, memory):
    """Rounds from a state on, until there is something for Python to do.

    Parameters
    ----------
    pair : tuple
        The samples of a pair, class by class, and its numbers, see
        `_working_set_kernels.beginning`, of which beta, f and points change in place.
    block : Block
    a, b : ClassRows
    tol : float
    rounding : float
        If this times the root of the sum of squares of all changes exceeds the violation, Python
        checks f.
    size : int
        Size of a working set.
    limit : int
        Maximum number of all steps.
    state : tuple
        Where the solver is between two rounds, or within one:

        * steps; sets, also the number of points remembered (`binary.TwoStep`); squares of all
          changes
        * the members of the last set, and whether its newer half is at the end
        * ready: the number of members of the last set if the block holds the kernel between these,
          -1 if it holds another set's
        * members that the last set changed, their changes, and whether f lacks these: then the rows
          that they need are made now
    memory : int
        Address of the thread's own memory.

    Returns
    -------
    outcome : int
        LOOK, PAUSE, GROW or STEP.
    wanted : tuple of int
        Of GROW: how many more slots each class needs.
    inside : tuple
        The violation of all samples, if a set was to be chosen. Of STEP: how many steps were made
        inside the set, and its numbers as `next_set` returns them.
    work : tuple of int
        Kernel values that were evaluated, read in steps, and subtracted from f.
    state : tuple
    """
    samples, numbers = pair
    beta, f = numbers[3], numbers[4]
    steps, sets, squares, members, last, ready, changed, change, pending = state
    n, n_a = len(f), a.rows.shape[1]
    final, evaluated, stepped, subtracted = pending, 0, 0, 0
    violation, inside, values, wanted = np.inf, 0, np.empty((7, 0)), (0, 0)
    while True:
        if not pending:
            outcome = LOOK
            violation, chosen, first, stop, values = working_sets.next_set(
                numbers, members, last, size, tol
            )
            trusted = rounding * np.sqrt(squares) <= violation
            if not (violation >= tol and trusted) or steps == limit:
                break
            m = len(chosen)
            K = _between(block, samples[chosen], first, stop, ready, memory)
            ready, evaluated = -1, evaluated + m * (stop - first)
            for k in range(m):
                values[0, k] = K[k, k]
            call = max(smo.MIN_STEPS_PER_CALL, m)
            call, to = min(call, smo.MAX_VALUES_PER_CALL // m, limit - steps), address(block.about)
            goal, block.rows[-1] = max(tol, smo.INNER_TOLERANCE * violation), m
            call_at(block.step, address(K), address(block.rows), address(values), goal, call, to)
            inside, left, stuck = int(block.about[0]), block.about[1], block.about[2]
            stepped += m * inside
            if inside == 0 or left != left:
                break  # Python makes the round again: it raises or ends the problem
            go_on = inside == call < limit - steps and not stuck
            steps, members, last, ready = steps + inside, chosen, stop == m, m
            if go_on:
                outcome = STEP
                break
            changed, change, square = working_sets.scatter(members, values[3], beta)
            squares, pending = squares + square, True
        outcome = GROW
        wanted = (
            working_sets.slots_wanted(changed, a.slots), working_sets.slots_wanted(changed, b.slots)
        )  # fmt: skip
        if max(wanted) > 0 and not final:
            break
        evaluated += n_a * _subtract(a, block, samples, changed, change, f[:n_a], memory)
        evaluated += (n - n_a) * _subtract(b, block, samples, changed, change, f[n_a:], memory)
        subtracted += n * len(changed)
        pending = final = False
        point = 7 + sets % 3 * 2
        working_sets.remember(numbers[point : point + 2], beta, f)
        sets, outcome = sets + 1, PAUSE
        # The many steps inside a set that a creeping problem takes do not fit into a call.
        ended = sets >= smo.CREEPING_SETS
        if ended or evaluated + stepped + subtracted > smo.MAX_VALUES_PER_CALL:
            break
    state = steps, sets, squares, members, last, ready, changed, change, pending
    work = evaluated, stepped, subtracted
    return outcome, wanted, (violation, inside, values), work, state
