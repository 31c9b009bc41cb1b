"""The LLVM code of every micro-kernel is verified, also of those that no CPU at hand can run."""

import llvmlite.binding as llvm
import numba  # noqa: F401 (starts LLVM)
import pytest
from llvmlite import ir

from gpurbf.layer.backends.numba import matvec_kernels, microkernels


def code(name, kind, build):
    """A module of one function, the kernel of addresses and sizes."""
    module, size = ir.Module(name), ir.IntType(64)
    count = 7 if build is microkernels.build else 6
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [size] * count), "kernel")
    builder = ir.IRBuilder(function.append_basic_block())
    microkernels.compile_for(builder, kind.target)
    build(builder, kind, *function.args)
    builder.ret_void()
    return str(module)


CODE = {name: (kind, microkernels.build) for name, kind in microkernels.KINDS.items()}
CODE |= {name: (kind, matvec_kernels.build) for name, kind in matvec_kernels.KINDS.items()}


@pytest.mark.parametrize("name", CODE)
def test_a_kernel_is_valid_code(name):
    text = code(name, *CODE[name])
    llvm.parse_assembly(text).verify()
    with pytest.raises(RuntimeError):  # it does look
        llvm.parse_assembly(text.replace("ret void", "ret i32 0")).verify()


def test_no_kernel_is_left_out():
    assert len(CODE) == len(microkernels.KINDS) + len(matvec_kernels.KINDS)
