"""SVC's solver: sequential minimal optimization on two levels, one binary problem a class pair.

train.py      samples grouped, their kernel, the solver, the answer
    │
pairs.py      all pairs: who runs when, on which threads; stop and progress
    │
binary.py     a pair: working set ─► inner steps ─► gradient of all its samples
    │
pair_kernel.py, row_cache.py   a pair's kernel: a part of a ready matrix, evaluated, or rows
    │                          that are kept within a budget
kernel_matrix.py   kernel values: a hidden layer whose centers are samples, or a given matrix

cuda_pairs.py, cuda_rounds.py  all pairs on a device, the host looking at them now and then
ovo.py                         votes and outputs of pairs for new samples
"""
