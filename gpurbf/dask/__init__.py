"""The estimators on a Dask cluster: samples stay on their workers, only sums and centers are sent.

    X, y ─► blocks ──► tasks, a worker's blocks ──► merged in a tree ──► the local estimator
            where       hashes, sums, HᵀH           on the workers        solves and is the model
            they are

``RBFClassifier``, ``SVC``, ``FSVC`` and ``RBFLayer`` have the parameters of the local estimators
and ``client``. The code of the local estimators runs on each block; Dask schedules the tasks.
"""

from __future__ import annotations

try:
    import dask.array
    import distributed
except ImportError as error:
    raise ImportError(
        f'gpurbf.dask needs Dask ({error}): in a copy of gpurbf, pip install ".[dask]"'
    ) from None

from gpurbf.dask.fsvc import FSVC
from gpurbf.dask.rbf import RBFClassifier, RBFLayer
from gpurbf.dask.svc import SVC

__all__ = ["RBFClassifier", "RBFLayer", "FSVC", "SVC"]

del dask, distributed
