"""The tests in Numba's simulator need a variable of their own: test_cuda_simulator.py runs them."""

import os

collect_ignore = [] if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else ["simulated"]
