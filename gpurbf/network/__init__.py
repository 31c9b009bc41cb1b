"""The mathematics: who the centers are, what the hidden layer gives, how the outputs are trained.

    X, y ─► centers/ ─► C ─► hidden.py ─► H, tile by tile ─► solvers/ ─► W
                 └────────── model.py composes the three ──────────┘

The three parts do not import each other; each has a registry that others can add to. `fsvc/` and
`svm.py` compose them for the classifiers that have a way of their own.
"""
