"""FSVC: centers by a pass over the samples, units of one radius, outputs by one rule.

    order.py     the order in which the samples come, drawn from their values
    units.py     the unit phi(d) of a radius, its kernels and distances
    radius.py    radii: one for a number of centers, the typical distance
    passes.py    the pass, and the three ways to choose centers by it
    known.py     the same over known distances of a part of the data: what a search tries
    search.py    the search for the best radius
    training.py  the outputs, and the answer far from all centers

The first four are shared with the center rules "fsvc" and "fsvc-class" and know no hidden layer.
"""
