"""ONNX: importing this module tells skl2onnx how to convert the estimators of this package.

    import gpurbf.onnx
    from skl2onnx import to_onnx

    model = to_onnx(pipeline, X[:1])  # outputs "label" and "scores" (of decision_function)

Everything is computed in float64. For distances the mean of the centers is subtracted first, so
that squares far from the origin do not lose digits. Scores are converted to the input's type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from gpurbf.estimators._rbf_outputs import RBFOutputsMixin
from gpurbf.estimators.fsvc import FSVC
from gpurbf.estimators.layer import RBFLayer
from gpurbf.estimators.rbf import RBFClassifier
from gpurbf.estimators.rbf_cv import RBFClassifierCV
from gpurbf.estimators.svc import SVC
from gpurbf.layer.activation import ROOT, SQUARE, form
from gpurbf.layer.backends.numba.matvec import row_products
from gpurbf.svm.ovo import pair_weights

try:
    from onnx import TensorProto
    from skl2onnx import update_registered_converter
    from skl2onnx.algebra import onnx_ops as ops
    from skl2onnx.algebra.complex_functions import onnx_cdist
    from skl2onnx.common.data_types import (
        DoubleTensorType,
        FloatTensorType,
        Int64TensorType,
        StringTensorType,
    )
except ImportError as error:
    raise ImportError(
        f"gpurbf.onnx needs skl2onnx: `python -m pip install skl2onnx onnxruntime` ({error})."
    ) from error

__all__: list[str] = []

_TINY = np.finfo(np.float64).tiny


class _Graph:
    """Shorthand for nodes: ``graph.Name(...)`` is the operator ``Name``; numbers become float64."""

    def __init__(self, operator: Any, scope: Any, container: Any) -> None:
        self.outputs, self.place = operator.outputs, (scope, container)
        self.opset = container.target_opset

    def __getattr__(self, name: str) -> Any:
        operator = getattr(ops, f"Onnx{name}")

        def node(*inputs: Any, **attributes: Any) -> Any:
            given = (np.array([i], float) if isinstance(i, int | float) else i for i in inputs)
            return operator(*given, op_version=self.opset, **attributes)

        return node

    def finish(self, number: int, node: Any) -> None:
        """Make the node an output, in the type that the shape function gave it."""
        double = isinstance(self.outputs[number].type, DoubleTensorType)
        kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
        self.Cast(node, to=kind, output_names=self.outputs[number : number + 1]).add_to(*self.place)

    def distances(self, X: Any, C: np.ndarray, metric: str) -> Any:
        """The metric's value (N, m): dot product, Manhattan or squared Euclidean distance."""
        if metric == "manhattan":
            return onnx_cdist(X, C, metric="manhattan", dtype=np.float64, op_version=self.opset)
        shift = C.mean(axis=0) if metric == "euclidean" else np.zeros(C.shape[1])
        V, X = C - shift, self.Sub(X, shift)
        products = self.MatMul(X, np.ascontiguousarray(V.T))
        if metric == "dot":
            return products
        # Compute the sum of squares as a product: its own operators differ between opsets.
        norms = self.MatMul(self.Mul(X, X), np.ones((C.shape[1], 1)))
        squares = self.Add(self.Mul(products, -2.0), self.Add(norms, np.einsum("ij,ij->i", V, V)))
        return self.Max(squares, 0.0)

    def activations(self, distances: Any, activation: Any) -> Any:
        """H from the result of `distances`."""
        _, profile, gamma, coef0, degree = activation
        t = distances
        if form(activation) == ROOT:
            t = self.Sqrt(t)
        elif form(activation) == SQUARE:
            t = self.Mul(t, t)
        s = self.Mul(t, float(gamma))
        formulas = {
            "linear": lambda: t,
            "gaussian": lambda: self.Exp(self.Neg(s)),
            "laplacian": lambda: self.Exp(self.Neg(s)),
            "triangular": lambda: self.Max(self.Sub(1.0, s), 0.0),
            "multiquadric": lambda: self.Sqrt(self.Add(s, 1.0)),
            "inverse-multiquadric": lambda: self.Div(1.0, self.Sqrt(self.Add(s, 1.0))),
            "thin-plate": lambda: self.Mul(self.Mul(s, self.Log(self.Max(s, _TINY))), 0.5),
            "poly": lambda: self.Pow(self.Add(s, coef0), float(degree)),
            "sigmoid": lambda: self.Tanh(self.Add(s, coef0)),
        }
        return formulas[profile]()


def _layer(model: Any) -> tuple[np.ndarray, str, Any]:
    """Centers (m, n) in float64, the metric and the activation of a fitted model."""
    centers: Any = model.support_vectors_ if isinstance(model, SVC) else model.centers_
    centers = centers.toarray() if sp.issparse(centers) else centers
    activation = model._activation
    # FSVC of squared distances has a function, too, which is treated below.
    if activation is None or (callable(activation.profile) and not isinstance(model, FSVC)):
        raise ValueError("A kernel that is precomputed or a function cannot be converted to ONNX.")
    metric = activation.metric
    if activation.linear:  # as in the model: far from the origin other sums lose digits
        centers = row_products(np.asarray(centers, np.float64).T, _pair_weights(model)).T
    # Parameters may have changed since the fit, so take those of its pass.
    if isinstance(model, FSVC) and (unit := model._selection.unit).metric == "sqeuclidean":
        # SFSVC puts the squared distance where other kernels have the distance. `activations` does
        # that for "manhattan": the value that it is given is the distance.
        gamma = unit._replace(radius=float(model.eval_radius_)).gamma
        activation = activation._replace(metric="manhattan", profile=unit.kernel, gamma=gamma)
    return np.asarray(centers, np.float64), metric, activation


def _pair_weights(model: SVC) -> np.ndarray:
    return pair_weights(np.asarray(model._dual_coef_), model.n_support_).dense()


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add a fitted model's nodes."""
    model, graph = operator.raw_operator, _Graph(operator, scope, container)
    centers, metric, activation = _layer(model)
    # The columns of a data frame are inputs of their own.
    parts = [graph.Cast(given, to=TensorProto.DOUBLE) for given in operator.inputs]
    X = graph.Concat(*parts, axis=1)
    D = graph.distances(X, centers, metric)
    H = graph.activations(D, activation)
    if isinstance(model, RBFLayer):
        graph.finish(0, H)
        return
    svc, proba = isinstance(model, SVC), isinstance(model, RBFOutputsMixin)
    if svc:
        sums = H if activation.linear else graph.MatMul(H, _pair_weights(model))
        points, scores = _svc(graph, model, sums)
    else:
        points, scores = None, _outputs(graph, model, H, D)
    two = len(model.classes_) == 2
    columns = graph.Concat(graph.Neg(scores), scores, axis=1) if two else scores
    best = graph.ArgMax(points if svc else columns, axis=1, keepdims=0)
    label, shape = graph.ArrayFeatureExtractor(_classes(model), best), np.array([-1], np.int64)
    graph.Reshape(label, shape, output_names=operator.outputs[:1]).add_to(scope, container)
    results = [graph.Reshape(scores, shape) if two else scores]
    if proba:
        scaled = graph.Div(columns, float(model.temperature_) * (2 if two else 1))
        results.append(graph.Softmax(scaled, axis=1))
    name = operator.outputs[1].raw_name
    if name != "scores":  # not by `_parse`: another estimator asks for one matrix (N, k)
        asked = container.get_options(model, {"raw_scores": None})["raw_scores"]
        results = [results[1] if proba and not asked else columns]
        # For two classes stacking takes one column, calibration two: only this name tells them
        # apart. If nothing is asked (None), it may be probabilities, or scores to choose a class.
        pairs = getattr(model, "decision_function_shape", "ovr") == "ovo"
        unclear = asked is False or pairs or hasattr(model, "predict_proba")
        if not proba and ((two and name == "sv_prob_tensor") if asked else unclear):
            raise ValueError(
                f"This estimator around {type(model).__name__} would be wrong in ONNX: it takes "
                "probabilities, scores of pairs, or a single column (docs/interop.md)."
            )
    for number, node in enumerate(results, 1):
        graph.finish(number, node)


def _svc(graph: _Graph, model: SVC, sums: Any) -> tuple[Any, Any]:
    """Points whose maximum decides the label, and scores, from the pairs' sums (N, n_pairs)."""
    n_classes = len(model.classes_)
    outputs = graph.Add(sums, np.asarray(model._intercept_, np.float64))
    # What a pair that its first class wins changes in the points of all classes.
    (first, second), one = np.triu_indices(n_classes, 1), np.eye(n_classes)
    change, before = one[first] - one[second], np.arange(n_classes, dtype=float)
    won = graph.Cast(graph.Greater(outputs, 0.0), to=TensorProto.DOUBLE)
    votes = graph.Add(graph.MatMul(won, change), before)
    if n_classes == 2:
        return votes, graph.Neg(outputs)
    # decision_function gives a tie at exactly 0 to the first class of the pair, predict does not.
    lost = graph.Cast(graph.Less(outputs, 0.0), to=TensorProto.DOUBLE)
    kept = graph.MatMul(graph.Sub(1.0, lost), change)
    total = graph.MatMul(outputs, change)
    squeezed = graph.Div(total, graph.Mul(graph.Add(graph.Abs(total), 1.0), 3.0))
    by_class = graph.Add(graph.Add(kept, before), squeezed)
    points = by_class if model.break_ties else votes
    return points, by_class if model.decision_function_shape == "ovr" else outputs


def _outputs(graph: _Graph, model: Any, H: Any, D: Any) -> Any:
    """Outputs (N, k) of the linear layer, with FSVC's rule for samples outside every radius."""
    W = np.ascontiguousarray(model.coef_.T, np.float64)
    # The model's exponentials are 0 below the smallest normal number of its dtype. (The model uses
    # float64 for a row that is not on the quantization of its centers. If such a row's activations
    # are between the limits of the two dtypes, it counts as outside here only.)
    limits = np.finfo(model._layer().dtype)
    least = float(limits.tiny)
    if callable(model._activation.profile):  # a function of "sqeuclidean" by NumPy keeps those
        least = float(limits.smallest_subnormal) / 2
    # Shrink is faster than Where, but its limit is a float32.
    H = graph.Shrink(H, lambd=least) if least > _TINY else H
    scores = graph.MatMul(H, W)
    if isinstance(model, RBFOutputsMixin):
        return graph.Add(scores, np.asarray(model.intercept_, np.float64))
    if model.outside == "zero":
        return scores
    activity = graph.MatMul(graph.Where(graph.Less(H, least), 0.0, H), np.ones((len(W), 1)))
    nearest = graph.Gather(W, graph.ArgMin(D, axis=1, keepdims=0), axis=0)
    return graph.Where(graph.Equal(activity, 0.0), nearest, scores)


def _classes(model: Any) -> np.ndarray:
    """Labels in a type that ONNX has: 64-bit integers or strings."""
    classes = model.classes_
    if classes.dtype.kind in "iub" and classes[-1] <= np.iinfo(np.int64).max:
        return classes.astype(np.int64)
    if all(isinstance(name, str) for name in classes):
        return classes.astype(str)
    raise ValueError(
        "ONNX allows labels that are 64-bit integers or strings, and these are "
        f"{classes.dtype}, up to {classes[-1]}: fit on y.astype(str), for example."
    )


def _shapes(operator: Any) -> None:
    """Types of the outputs: scores are double if an input is, else float."""
    model, given = operator.raw_operator, operator.inputs
    check_is_fitted(model)
    double = any(isinstance(each.type, DoubleTensorType) for each in given)
    real, N = DoubleTensorType if double else FloatTensorType, given[0].get_first_dimension()
    if isinstance(model, RBFLayer):
        operator.outputs[0].type = real([N, model.centers_.shape[0]])
        return
    k, own = len(model.classes_), operator.outputs[1].raw_name == "scores"
    strings = _classes(model).dtype.kind == "U"
    operator.outputs[0].type = (StringTensorType if strings else Int64TensorType)([N])
    columns = k * (k - 1) // 2 if getattr(model, "decision_function_shape", "ovr") == "ovo" else k
    operator.outputs[1].type = real([N] if own and k == 2 else [N, max(columns, k)])
    for output in operator.outputs[2:]:
        output.type = real([N, k])


def _parse(scope: Any, model: Any, inputs: Any, custom_parsers: Any = None) -> Any:
    """Declare the outputs of a classifier by the names they should have."""
    operator = scope.declare_local_operator(f"Gpurbf{type(model).__name__}", model)
    operator.inputs = inputs
    # A pipeline inside another estimator is parsed while that is converted.
    second = "columns" if scope.input_variables[0].is_fed else "scores"
    names = ["label", second] + ["probabilities"] * isinstance(model, RBFOutputsMixin)
    for name in names:
        kind = Int64TensorType() if name == "label" else FloatTensorType()
        operator.outputs.append(scope.declare_local_variable(name, kind))
    return operator.outputs


for _estimator in (SVC, RBFClassifier, RBFClassifierCV, FSVC, RBFLayer):
    update_registered_converter(
        _estimator,
        f"Gpurbf{_estimator.__name__}",
        _shapes,
        _convert,
        parser=None if _estimator is RBFLayer else _parse,
        # Many pass "zipmap" for scikit-learn's classifiers: here scores are always an array.
        # Estimators around this one ask for scores or probabilities by "raw_scores".
        options=None if _estimator is RBFLayer else {"zipmap": [False], "raw_scores": None},
    )
