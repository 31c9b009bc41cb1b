"""The AMX kernel without AMX: its code, its packing and indexing on emulated tiles, its driver."""

import ctypes
import re

import numpy as np
import pytest
from callers import run_python
from numba import carray, cfunc, types

from gpurbf import BackendUnavailable
from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.numba import amx, cpu_kernel, microkernel_table, packing, tile_layer
from gpurbf.layer.backends.numba.driver import MicroKernel
from gpurbf.layer.backends.numba.microkernels import LANES
from gpurbf.runtime import cpu
from tests.layer.numba.test_microkernels import pack

COMPILE = """
from numba import cfunc, types
from gpurbf.layer.backends.numba import amx
from gpurbf.layer.backends.numba import activation_kernels
integer, real = types.intp, types.float64
for function, count in ((amx.dot_amx, 7), (amx.enter, 1), (amx.leave, 1)):
    print(cfunc(types.void(*(integer,) * count))(function)._library.get_asm_str())
print("PROFILE")
signature = types.void(types.CPointer(types.float32), integer, real, real, integer)
print(cfunc(signature, fastmath={"contract"})(activation_kernels.gaussian)._library.get_asm_str())
"""


@pytest.fixture(scope="module")
def assembly():
    """What LLVM makes of the kernel for a CPU with AMX; nothing of it is run."""
    if "avx" not in cpu.cpu_features():
        pytest.skip("not an x86-64 CPU")
    features = "+amx-tile,+amx-int8,+avx512f,+avx512bw,+avx512vl,+avx512dq"
    environment = {"NUMBA_CPU_NAME": "sapphirerapids", "NUMBA_CPU_FEATURES": features}
    return run_python(COMPILE, **environment).stdout


def test_kernel_is_tile_instructions(assembly):
    four, one = ("tdpbsud", "tileloadd", "tilezero", "tilestored"), ("ldtilecfg", "tilerelease")
    for instruction in four + one:
        count = len(re.findall(rf"\t{instruction}\b", assembly))
        assert count >= (4 if instruction in four else 1), instruction


def test_accumulators_meet_the_operands_they_are_meant_for(assembly):
    # AT&T order: centers, rows, sums.
    found = re.findall(r"tdpbsud\s+%tmm(\d), %tmm(\d), %tmm(\d)", assembly)
    assert set(found) == {("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")}


def test_activations_use_the_widest_vectors_where_llvm_prefers_half(assembly):
    assert len(re.findall(r"vfmadd.*%zmm", assembly.split("PROFILE")[1])) > 5


def tile_bytes(address, stride):
    """The 16 rows of 64 bytes that a tile instruction with this operand touches."""
    rows = [(ctypes.c_uint8 * 64).from_address(address + r * stride) for r in range(16)]
    return [np.frombuffer(row, np.uint8) for row in rows]


@pytest.fixture
def emulated(monkeypatch):
    """`dot_amx` as plain Python on tile registers made of NumPy arrays, as Intel defines them."""
    tiles = {t: np.zeros((16, 64), np.uint8) for t in range(8)}
    addresses = []

    def load(t, address, stride):
        addresses.extend(address + r * stride for r in range(16))
        tiles[t][:] = tile_bytes(address, stride)

    def store(t, address, stride):
        for source, target in zip(tiles[t], tile_bytes(address, stride)):
            target[:] = source

    def dot(total, x, c):
        # dst[m][n] += Σ_k Σ_i s8 a[m][4k + i] · u8 b[k][4n + i]
        a = tiles[x].view(np.int8).astype(np.int64).reshape(16, 16, 4)
        b = tiles[c].astype(np.int64).reshape(16, 16, 4)
        tiles[total].view(np.int32)[:] += np.einsum("mki,kni->mn", a, b).astype(np.int32)

    for t in range(4):
        monkeypatch.setattr(amx, f"_zero{t}", lambda t=t: tiles[t].fill(0))
        monkeypatch.setattr(amx, f"_store{t}", lambda a, s, t=t: store(t, a, s))
    for t, name in enumerate(("x0", "x1", "c0", "c1"), start=4):
        monkeypatch.setattr(amx, f"_load_{name}", lambda a, s, t=t: load(t, a, s))
    for total, (x, c) in enumerate([(4, 6), (4, 7), (5, 6), (5, 7)]):
        name = f"_dot{total // 2}{total % 2}"
        monkeypatch.setattr(amx, name, lambda total=total, x=x, c=c: dot(total, x, c))
    monkeypatch.setattr(amx, "int32_at", lambda at: ctypes.c_int32.from_address(int(at)).value)
    return addresses


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n", [1, 64, 130, 300])
def test_emulated_tiles_give_the_products_of_packed_operands(emulated, n, sparse):
    rng = np.random.default_rng(n)
    X, C = rng.integers(-128, 128, (32, n)).astype(np.int8), rng.integers(0, 256, (32, n))
    C, zero = C.astype(np.uint8), np.zeros(n, np.int32)
    C[:, 40:200] = 0
    product = microkernel_table.layout_of("dot_amx")
    width = microkernel_table.padded(n, product.depth)
    c, x = packing.aligned(32 * width, np.uint8), packing.aligned(32 * width, np.int8)
    pack(C, zero, LANES, product.c_group, c, np.zeros((4, width), np.uint8))
    pack(X, zero, product.rows, product.x_group, x)
    kernel = MicroKernel(0, 0, 0, 0, 32, 2, 64, width, np.dtype(np.int8))
    ((_, steps, _),), places = packing.strips_of(kernel, c, sparse)
    assert steps == ({1: 1, 64: 1, 130: 1, 300: 3}[n] if sparse else width // 64)
    out = packing.aligned(32 * 48, np.int32).reshape(32, 48)
    out[:] = 77
    amx.dot_amx(
        x.ctypes.data, places.ctypes.data, c.ctypes.data, LANES * 64 * int(steps), int(steps),
        out.ctypes.data, 48 * 4,
    )  # fmt: skip
    np.testing.assert_array_equal(out[:, :32], X.astype(np.int64) @ C.T)
    assert (out[:, 32:] == 77).all()
    assert all(address % 64 == 0 for address in emulated)


@pytest.fixture
def stand_in(monkeypatch):
    """A kernel of the same signature and layout that any CPU can run, chosen as if it were AMX."""
    calls = []

    def dot(x, places, c, c_stride, steps, out, out_stride):
        a, first = carray(x, 1 << 20), carray(places, steps)
        for row in range(32):
            for column in range(32):
                panel, lane = column // 16, column % 16
                b = carray(c, c_stride * 2)
                total = 0
                for k in range(steps * 64):
                    center = b[panel * c_stride + k // 4 * 64 + lane * 4 + k % 4]
                    number = a[first[k // 64] + 64 * row + k % 64]
                    total += np.int32(number) * np.int32(center)
                carray(out, 32 * out_stride // 4)[row * out_stride // 4 + column] = total

    signed, byte, word = (types.CPointer(t) for t in (types.int8, types.uint8, types.int32))
    size = types.intp
    compiled = {
        "dot_amx": cfunc(types.void(signed, word, byte, size, size, word, size))(dot),
        "enter_amx": ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(lambda a: calls.append(("enter", a))),
        "leave_amx": ctypes.CFUNCTYPE(None, ctypes.c_ssize_t)(lambda a: calls.append(("leave", a))),
    }
    own = microkernel_table.address

    def address(name):
        if name not in compiled:
            return own(name)
        function = compiled[name]
        pointer = getattr(function, "address", None)
        return pointer or ctypes.cast(function, ctypes.c_void_p).value

    monkeypatch.setattr(microkernel_table, "address", address)
    monkeypatch.setattr(cpu_kernel, "choose_kernel", lambda: ("amx", "emulated"))
    if "avx512f" not in cpu.cpu_features():
        plain = cpu_kernel.KERNELS["amx"]._replace(vectors="generic")
        monkeypatch.setitem(cpu_kernel.KERNELS, "amx", plain)
    return calls


@pytest.mark.parametrize("N, m, n", [(1, 1, 1), (33, 31, 64), (205, 290, 70)])
def test_driver_feeds_the_amx_layout(stand_in, N, m, n):
    rng = np.random.default_rng(0)
    X, C = (rng.integers(0, 256, (rows, n)).astype(np.uint8) for rows in (N, m))
    activation = Activation("euclidean", "identity")
    layer = tile_layer.prepare(C, activation, np.float64, Quantization(1.0, 0))
    assert layer.kernel.enter
    D = np.empty((N, m))
    layer.activations(X, D)
    A, B = X.astype(np.int64), C.astype(np.int64)
    np.testing.assert_array_equal(D, ((A[:, None] - B) ** 2).sum(axis=2))
    # Every task configures the tiles of its thread and gives them back.
    entered = [address for what, address in stand_in if what == "enter"]
    assert entered and len(entered) * 2 == len(stand_in)
    assert set(entered) == {amx.CONFIGURATION.ctypes.data}


def test_configuration_is_palette_one_with_eight_full_tiles():
    assert amx.CONFIGURATION[0] == 1 and amx.CONFIGURATION.size == 64
    np.testing.assert_array_equal(amx.CONFIGURATION[16:32].view(np.uint16), [64] * 8)
    np.testing.assert_array_equal(amx.CONFIGURATION[48:56], [16] * 8)


def test_denied_permission_is_a_reason_and_not_a_crash(monkeypatch):
    features = frozenset().union(*(own.features for own in cpu_kernel.KERNELS.values()))
    monkeypatch.setattr(cpu_kernel, "cpu_features", lambda: features)
    monkeypatch.setattr(amx, "permission", lambda: "the system denies the tile registers")
    cpu_kernel.missing.cache_clear()
    try:
        assert cpu_kernel.choose_kernel()[0] == "avx512vnni"
        monkeypatch.setenv(cpu_kernel.VARIABLE, "amx")
        with pytest.raises(BackendUnavailable, match="denies the tile registers"):
            cpu_kernel.choose_kernel()
    finally:
        cpu_kernel.missing.cache_clear()


def test_permission_is_asked_without_harm():
    assert amx.permission() is None or isinstance(amx.permission(), str)
