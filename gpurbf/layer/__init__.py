"""The hidden layer: H[i, j] = phi(d(x_i, c_j)), whole or consumed tile by tile.

layer.py       HiddenLayer: hands samples, as codes or numbers, to a backend
protocol.py    Layer: what center rules and solvers ask of a hidden layer
activation.py  metrics and profiles;  distance.py  distances out of products
gamma.py       the kernel's scale from the data
sparse.py      CSR samples: rows with few entries, and layers too wide to be made dense
backends/      the switch, and a folder a family: numba/ (tiles), blas/ (matrix products), cuda/
"""
