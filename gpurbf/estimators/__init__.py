"""scikit-learn estimators: parameters, validation, labels in and labels out; no mathematics."""
