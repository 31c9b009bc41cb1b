"""bench gpu on the stand-in for CuPy: it runs to its end; its figures mean nothing there."""

import pytest

from gpurbf.bench import gpu
from gpurbf.report import Report


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_every_section_runs_with_what_is_there(cupy, capsys):
    gpu.run(Report(gpu.TITLE), quick=True, data_home=None)
    printed = capsys.readouterr().out
    for heading in ("limits of stand-in", "Largest error", "over samples", "as fast", "Copies",
                    "Memory", "Estimators"):  # fmt: skip
        assert heading in printed
    assert "cupy, 8-bit" in printed and "numba-cuda" not in printed


def test_without_a_gpu_it_says_so(capsys):
    from gpurbf.backends import available_backends

    if not all(available_backends()[name] for name in gpu.GPUS):
        pytest.skip("there is a GPU here")
    gpu.run(Report(gpu.TITLE), quick=True, data_home=None)
    assert "Not measured on a GPU" in capsys.readouterr().out
