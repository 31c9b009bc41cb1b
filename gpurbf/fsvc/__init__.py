"""FSVC: centers by a pass over the samples, units of one radius, outputs by one rule.

    units.py      the unit phi(d) of a radius, its kernels and distances
    selection.py  the order of the samples, the pass, and the three ways to choose centers by it
    known.py      the pass and the hidden layer over known distances of a part of the data
    search.py     the search for the best radius, over known distances

The center rules "fsvc" and "fsvc-class" (`gpurbf/centers/fsvc.py`) use `units.py`, `selection.py`
and ``find_radius`` of `search.py`.
"""
