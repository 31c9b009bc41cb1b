"""SVC's solver: sequential minimal optimization on two levels, one binary problem per class pair.

train.py            samples grouped, their kernel, the solver, the answer
    │
pairs.py            all pairs: who runs when, on which threads; stop and progress
    │
binary.py           a pair: working set ─► inner steps ─► gradient of all its samples
    │               (_round_kernels.py: the same without Python, where each thread has a pair)
pair_kernel.py      its kernel: a part of a ready matrix, evaluated when asked for,
row_cache.py        or made of rows that are kept within a budget
    │
kernel_matrix.py    kernel values: a hidden layer whose centers are samples, or a given matrix

cuda_pairs.py       instead of pairs.py and binary.py: all pairs side by side on a device;
cuda_check.py       whether its steps are right there
rounding.py         which arithmetic kernel values and their sums need
ovo.py              outputs of pairs for new samples, and their votes
platt.py            probabilities: a sigmoid a pair, and their coupling
"""
