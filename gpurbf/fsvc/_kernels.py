"""FSVC's pass: the walk over the candidates of a block, and the plain pass over known distances."""

import numpy as np

from gpurbf.runtime.jit.caching import cached
from gpurbf.runtime.jit.llvm import address, call_at, moved, pointer

# Above the sum of all activations that tiles flush to 0 (below the smallest normal number).
_LOST = 1e-300


@cached(nogil=True, error_model="numpy")
def walk(begin, A, K, labels, certain, rule, room, taken):
    """Decide the candidates from `begin` on, in order; those chosen raise the activity of the rest.

    Parameters
    ----------
    A : float64 array of shape (b, k)
        Activity of each candidate by class of center (k = 1: all labels are 0), updated in place.
    K : float64 array of shape (b, b)
        Activation between candidates.
    labels : int64 array of shape (b,)
        Column of A that a candidate adds to.
    certain : bool array of shape (b,)
        Candidates whose row of A is exact, so that they cannot be in doubt.
    rule : (float, float, float, bool)
        `overlap`, `margin`, `doubt` and `relative`. A candidate is novel if its activity is below
        `overlap`. A novel candidate becomes a center if its class leads the best other class by
        less than ``margin * activity`` (infinity: always). Within `doubt` of a threshold the walk
        stops for a direct evaluation; `relative` is whether the error of an activity is `doubt`
        times the activity.
    room : int
        Maximum number of further centers.
    taken : bool array of shape (b,)
        Set for the candidates chosen.

    Returns
    -------
    position : int
        Number of the candidate in doubt, or b at the end.
    room : int
    """
    b, k = A.shape
    overlap, margin, doubt, relative = rule
    for p in range(begin, b):
        if room == 0:
            return b, room
        activity, rival = 0.0, 0.0
        for j in range(k):
            activity += A[p, j]
            if j != labels[p] and A[p, j] > rival:
                rival = A[p, j]
        lead = A[p, labels[p]] - rival - margin * activity
        unsure = doubt * activity + _LOST if relative else doubt  # about the lead
        if not certain[p] and (abs(activity - overlap) <= doubt or abs(lead) <= unsure):
            return p, room
        if activity < overlap and (lead < 0.0 or A[p, labels[p]] <= rival):
            taken[p] = True
            room -= 1
            for q in range(p + 1, b):
                A[q, labels[p]] += K[p, q]
    return b, room


@cached(nogil=True, error_model="numpy")
def pass_over(D, y, unit, overlap, margin, apart, room, A, taken, memory):
    """The plain sequential pass over known distances.

    Parameters
    ----------
    D : float array of shape (S, S)
        Distances between samples, in the order of the pass.
    y : int64 array of shape (S,)
        Class numbers.
    unit : (int, float, bool)
        The address of its profile, see `layer.backends.numba.activation_kernels`; gamma; whether
        the profile takes d², else d.
    overlap, margin : float
        See `walk`.
    apart : bool
        Whether only centers of a sample's own class count.
    room : int64 array of shape (classes,) if ``apart``, else (1,)
        Maximum number of centers; becomes that of further ones.
    A : float64 array of shape (k, S), zeros
        Filled with the activity by class of center, or of all centers (k = 1).
    taken : bool array of shape (S,)
        Set for the samples chosen.
    memory : float64 array of shape (S,)
    """
    k, S = A.shape
    profile, gamma, squared = unit
    values = pointer(address(memory), memory)
    # The profile makes 0 of subnormal numbers, whose order decides where there are no others:
    # exp(-x) is the square of exp(-x / 2). With factors for a condition, loops are compiled once.
    double, plain, part = (1.0, 0.0, 0.5) if squared else (0.0, 1.0, 1.0)
    for i in range(S):
        own = y[i] if k > 1 else 0
        activity, rival = A[own, i], 0.0
        if not apart:
            for j in range(k):
                if j != own:
                    activity += A[j, i]
                    rival = A[j, i] if A[j, i] > rival else rival
        lead = A[own, i] - rival
        c = own if apart else 0
        if room[c] == 0 or activity >= overlap or not (lead < margin * activity or lead <= 0.0):
            continue
        taken[i] = True
        room[c] -= 1
        distances, n = moved(pointer(address(D), D), i * S + i), S - i
        total = moved(pointer(address(A), A), own * S + i)
        for q in range(n):
            d = np.float64(distances[q])
            values[q] = d * (double * d + plain)
        call_at(profile, address(values), n, gamma * part, 0.0, 0)
        for q in range(n):
            total[q] += values[q] * (double * values[q] + plain)
