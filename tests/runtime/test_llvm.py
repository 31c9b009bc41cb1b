"""The LLVM code of every micro-kernel is verified, also of those that no CPU at hand can run."""

import llvmlite.binding as llvm
import pytest

from gpurbf.layer.backends.numba.matvec_kernels import KINDS as OF_MATVEC
from gpurbf.layer.backends.numba.microkernels import KINDS
from tests.layer.numba.test_microkernels import written


@pytest.mark.parametrize("name", KINDS | OF_MATVEC)
def test_a_kernel_is_valid_code(name):
    text = written(name)
    llvm.parse_assembly(text).verify()
    with pytest.raises(RuntimeError):  # it does look
        llvm.parse_assembly(text.replace("ret void", "ret i32 0")).verify()
