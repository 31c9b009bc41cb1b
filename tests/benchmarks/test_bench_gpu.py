"""The benchmark `gpu` runs to its end on the stand-in for CuPy; its figures mean nothing there."""

import pytest

from benchmarks import gpu
from benchmarks.report import Report


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_every_section_runs_with_what_is_there(cupy, capsys):
    gpu.run(Report(gpu.TITLE), quick=True, data_home=None)
    printed = capsys.readouterr().out
    for heading in ("limits of stand-in", "over samples", "as fast", "Estimators"):
        assert heading in printed
    assert "cupy, 8-bit" in printed and "numba-cuda" not in printed


def test_a_way_or_a_section_that_fails_leaves_the_others_and_the_page(
    cupy, monkeypatch, tmp_path, capsys
):
    def broken(*arguments, **options):
        raise ArithmeticError("a broken device")

    # One way is broken from the start, one section as a whole, another after its first table.
    gemm, cublas = cupy.cuda.cublas.gemmEx, cupy.cuda.cublas

    def without_float64(*arguments):
        return (broken if cublas.CUBLAS_COMPUTE_64F in arguments else gemm)(*arguments)

    monkeypatch.setattr(cublas, "gemmEx", without_float64)
    monkeypatch.setattr(gpu, "_fits", broken)
    page = tmp_path / "gpu.md"
    with pytest.raises(RuntimeError, match=r"2 sections failed: .*limits.*a broken device"):
        gpu.run(Report(gpu.TITLE, page), quick=True, data_home=None)
    written = page.read_text()
    for heading in ("over samples", "as fast"):
        assert heading in written
    assert "cupy, float64 failed" in written
    # The tables have the ways that work.
    table = written[written.index("## H @ W, ") : written.index("## H @ W over")]
    assert "| cupy, 8-bit " in table and "| cupy, float64" not in table


def test_without_a_gpu_it_says_so(capsys):
    from gpurbf.layer.backends import available_backends

    if not all(available_backends()[name] for name in gpu.GPUS):
        pytest.skip("there is a GPU here")
    gpu.run(Report(gpu.TITLE), quick=True, data_home=None)
    assert "Not measured on a GPU" in capsys.readouterr().out
