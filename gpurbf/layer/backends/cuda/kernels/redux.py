"""The largest of a warp's numbers: an instruction that not every GPU has."""

from numba import types
from numba.extending import intrinsic

from gpurbf.layer.backends.cuda.kernels.registers import I32, asm

try:
    from numba.cuda.core import targetconfig  # numba-cuda has its own
except ImportError:
    from numba.core import targetconfig

_EXCHANGES = "".join(
    f"shfl.sync.bfly.b32 other, $0, {step}, 31, 0xffffffff; max.s32 $0, $0, other; "
    for step in (16, 8, 4, 2, 1)
)


@intrinsic
def largest(typing_context, x):
    """The largest of a warp's 32 numbers x of 32 bits; all its threads are to come here."""

    def generate(context, builder, signature, args):
        text = f"{{ .reg .b32 other; mov.b32 $0, $1; {_EXCHANGES}}}"
        if targetconfig.ConfigStack().top().compute_capability >= (8, 0):
            text = "redux.sync.max.s32 $0, $1, 0xffffffff;"
        return asm(builder, text, I32, "=&r,r", args, True)

    return types.int32(types.int32), generate
