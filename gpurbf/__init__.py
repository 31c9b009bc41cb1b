"""RBF networks and kernel machines (SVC) for scikit-learn, on CPUs and NVIDIA GPUs.

    X, y ─► estimators ─► centers ─► layer ──────► solvers
            labels,       which      H, tile by     H, y → W
            parameters,   points     tile, on a     svm
            validation               backend        K, y → alpha

Public names are imported on first use, so ``import gpurbf`` is fast and imports neither Numba nor
a GPU library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # `X as X`: type checkers take it for a name of the package
    from gpurbf import datasets as datasets
    from gpurbf.estimators.fsvc import FSVC as FSVC
    from gpurbf.estimators.layer import RBFLayer as RBFLayer
    from gpurbf.estimators.rbf import RBFClassifier as RBFClassifier
    from gpurbf.estimators.rbf_cv import RBFClassifierCV as RBFClassifierCV
    from gpurbf.estimators.svc import SVC as SVC
    from gpurbf.patching import patch_sklearn as patch_sklearn
    from gpurbf.patching import unpatch_sklearn as unpatch_sklearn
    from gpurbf.profiling.profiler import profile as profile
    from gpurbf.runtime.config import config_context as config_context
    from gpurbf.runtime.config import get_config as get_config
    from gpurbf.runtime.config import set_config as set_config
    from gpurbf.runtime.errors import BackendUnavailable as BackendUnavailable

__version__ = "0.1.0"

# The module that defines each public name.
_HOMES = {
    "RBFClassifier": "gpurbf.estimators.rbf",
    "RBFClassifierCV": "gpurbf.estimators.rbf_cv",
    "RBFLayer": "gpurbf.estimators.layer",
    "FSVC": "gpurbf.estimators.fsvc",
    "SVC": "gpurbf.estimators.svc",
    "profile": "gpurbf.profiling.profiler",
    "patch_sklearn": "gpurbf.patching",
    "unpatch_sklearn": "gpurbf.patching",
    "BackendUnavailable": "gpurbf.runtime.errors",
    "config_context": "gpurbf.runtime.config",
    "get_config": "gpurbf.runtime.config",
    "set_config": "gpurbf.runtime.config",
}
__all__ = [*_HOMES, "datasets", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "datasets":
        return importlib.import_module("gpurbf.datasets")
    if name not in _HOMES:
        raise AttributeError(f"module 'gpurbf' has no attribute {name!r}")
    from gpurbf.runtime.lazy import without_collecting

    with without_collecting():
        value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
