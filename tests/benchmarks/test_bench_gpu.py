"""The benchmark `gpu` runs to its end on the stand-in for CuPy; its figures mean nothing there."""

import pytest

from benchmarks import gpu, ways
from benchmarks.report import Report


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_every_section_runs_and_one_that_fails_leaves_the_others(cupy, monkeypatch, tmp_path):
    """One section is broken as a whole, and of others a way, a product in float64."""

    def broken(*arguments, **options):
        raise ArithmeticError("a broken device")

    gemm, cublas, page = cupy.cuda.cublas.gemmEx, cupy.cuda.cublas, tmp_path / "gpu.md"
    gpu.run(Report(gpu.TITLE, page), quick=True, data_home=None)
    for heading in ("limits of stand-in", "| HᵀH ", "speed-up", "| cupy, 8-bit, with", "## FSVC"):
        assert heading in page.read_text()
    float64 = cublas.CUBLAS_COMPUTE_64F
    monkeypatch.setattr(cublas, "gemmEx", lambda *a: (broken if float64 in a else gemm)(*a))
    monkeypatch.setitem(gpu.SECTIONS, "fits", broken)
    with pytest.raises(RuntimeError, match=r"2 sections failed: .*limits.*a broken device"):
        gpu.run(Report(gpu.TITLE, page), quick=True, data_home=None)
    written = page.read_text()
    assert "cupy, float64, on the device failed" in written and "| cupy, 8-bit, with" in written
    assert "| cupy, float64" not in written and "numba-cuda" not in written


def test_without_a_gpu_it_says_so(capsys):
    if not all(name in ways.refused() for name in gpu.GPUS):
        pytest.skip("there is a GPU here")
    gpu.run(Report(gpu.TITLE), quick=True, data_home=None)
    assert "Not measured on a GPU" in capsys.readouterr().out
