"""The commands do what README says; what a user can put right is one line and exit code 2."""

import csv
import gzip
import importlib
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from callers import interrupts, run_python

import gpurbf
from gpurbf import BackendUnavailable, datasets
from gpurbf.cli import COMMANDS, classify, main, module_of, warmup
from gpurbf.layer import backends
from gpurbf.layer.backends.numba import consumers
from gpurbf.profiling import machine
from tests.test_datasets import idx_bytes


def call(*arguments):
    """The exit code, however the command ends."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return stop.code


@pytest.fixture
def said(capsys):
    """Call a command, which ends with that code: what it prints, and its errors."""

    def call_and_read(*arguments, code=0):
        assert call(*arguments) == code
        return capsys.readouterr()

    return call_and_read


@pytest.fixture
def folder(tmp_path):
    """IDX files of a two-class problem on images of 3 × 5, some compressed."""
    rng = np.random.default_rng(0)
    home = tmp_path / "stripes"
    home.mkdir()
    for part, n in (("train", 60), ("t10k", 20)):
        y = np.arange(n) % 2
        X = rng.integers(0, 60, (n, 3, 5))
        X[y == 1, 1] += 150
        images, labels = (idx_bytes(data.astype(np.uint8)) for data in (X, y))
        (home / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (home / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return home


def cells(row):
    """Those of a table's row, in one word each."""
    return [cell.strip().replace(" ", "_") for cell in row.split("|")[1:-1]]


@pytest.mark.parametrize("estimator", classify.ESTIMATORS)
def test_classify_shows_progress_and_a_table(said, tmp_path, estimator):
    arguments = ("--estimator", estimator, "--backend", "numpy", "--out", tmp_path)
    out, err = said("classify", *arguments, "--verbose")
    assert "fitting" in err and "predicting" in err
    title, _, header, _, row, *_ = out.splitlines()
    assert title == "digits: 1,347 training and 450 test images of 8 × 8, 10 classes"
    assert cells(header) == "estimator backend centers fit_s predict_s accuracy_%".split()
    name, backend, _, _, _, accuracy = cells(row)
    assert backend == "numpy" and float(accuracy) > 95
    assert f"{name} ran on numpy" in err
    assert not said("classify", *arguments).err  # where nothing is compiled


def test_classify_has_a_row_for_each_estimator_on_a_folder_as_it_ends_and_then_a_picture(
    capsys, monkeypatch, tmp_path, folder
):
    printed, original, home = [], classify._classify, tmp_path / "new" / "folder"

    def watched(name, *rest):
        printed.append(capsys.readouterr().out)
        return original(name, *rest)

    monkeypatch.setattr(classify, "_classify", watched)
    assert call("classify", "--data", folder, "--out", home) == 0
    last, *pictures = capsys.readouterr().out.splitlines()
    start, *rows = (*printed, last)
    assert start.startswith("stripes: 60 training and 20 test images of 3 × 5, 2 classes\n")
    assert [cells(row)[0] for row in rows] == ["SVC", "RBFClassifier", "FSVC"]
    assert all(cells(row)[5] == "100.00" for row in rows)
    assert len({len(row.strip()) for row in rows}) == 1
    pytest.importorskip("matplotlib")
    paths = [home / f"stripes-{name}.png" for name in classify.ESTIMATORS]
    assert pictures == ["", *(f"picture: {path}" for path in paths)]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize(
    ("command", "options"),
    [("classify", ["--data", "stripes"]), ("profile", ["--quick", "--centers", 50])],
)
def test_without_matplotlib_it_says_how_to_get_it_and_goes_on(
    said, monkeypatch, tmp_path, folder, command, options
):
    for name in {"matplotlib", *sys.modules}:
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    out = said(command, *options, "--backend", "numpy", "--out", "out.png").out
    assert "python -m pip install matplotlib" in out
    assert not (tmp_path / "out.png").exists()


def test_the_process_that_draws_compiles_ahead_without_scikit_learn(tmp_path):
    """Which takes longer to import than all else that it does where kernels are on disk."""
    code = "import sys; from gpurbf.cli import classify; classify._work_ahead(False, True)"
    code += "; assert 'sklearn' not in sys.modules"
    assert not run_python(code, NUMBA_CACHE_DIR=str(tmp_path)).stderr
    assert list(tmp_path.rglob("driver.evaluate_rows*.nbc"))


def test_the_hardest_are_the_most_confident_mistakes_then_the_closest_calls():
    classes = np.array([3, 5, 7])
    y, predicted = np.array([3, 5, 7, 7, 9]), np.array([3, 7, 3, 7, 3])
    scores = np.array([[1, 0, 0], [0, 0.2, 0.9], [2, 0, 0], [0, 0.4, 1], [9, 0, 8]], float)
    # The last is of a class that no training sample had.
    assert classify.hardest(y, predicted, classes, scores).tolist() == [4, 2, 1, 3, 0]
    y, predicted = np.array([0, 1, 1, 0]), np.array([1, 0, 1, 0])
    scores = np.array([0.1, -3.0, 2.0, -1.0])
    assert classify.hardest(y, predicted, np.array([0, 1]), scores).tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "invalid choice: 'train'"),
        (("classify", "--data", "/no/such/folder"), "/no/such/folder"),
        (("classify", "--backend", "abacus"), "invalid choice: 'abacus'"),
        (("classify", "--estimator", "forest"), "invalid choice: 'forest'"),
        (("classify", "--data", "lunch", "--estimator", "lunch"), "invalid choice: 'lunch'"),
        (("profile", "--out", "picture.gif"), "must end in .png, .svg or .csv"),
        (("profile", "--out", "no/such/folder/p.svg"), "there is no folder no/such/folder"),
        (("profile", "--estimator", "svc", "--centers", "9"), "svc chooses its own"),
        (("profile", "--data", "digits"), "digits: no such folder; --quick takes the digits."),
        (("profile", "--quick", "--centers", "0"), "n_centers must be >= 1"),
        (("profile", "--threads", "1,x"), "--threads 1,x: give numbers >= 1 like 1,2,16."),
        (("info", "--loud"), "unrecognized arguments: --loud"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_code_2(said, arguments, message):
    out, err = said(*arguments, code=2)
    assert message in err and "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("gpurbf")]
    assert errors == err.splitlines()[-1:]
    assert not out


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("t10k-labels-idx1-ubyte", idx_bytes(np.zeros(20, np.uint8))[:-1], "truncated"),
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros(60, np.uint8)), "class"),
        (
            "train-images-idx3-ubyte",
            idx_bytes(np.full((60, 3, 5), np.nan, ">f8"), 14),
            "X contains",
        ),
        ("file", b"", "file/out"),
    ],
    ids=["damaged", "refused by an estimator", "by scikit-learn", "no folder for pictures"],
)
def test_unfit_data_and_folders_are_one_line_and_exit_code_2(said, folder, file, content, message):
    if file == "file":
        pytest.importorskip("matplotlib")
    (folder / file).write_bytes(content)
    arguments = ("--data", folder, "--backend", "numpy", "--out", folder / "file" / "out")
    assert message in said("classify", *arguments, code=2).err.splitlines()[-1]


def missing():
    raise BackendUnavailable("no abacus found: buy one")


def test_a_backend_that_is_missing_is_refused_with_the_way_to_get_it(said, monkeypatch):
    monkeypatch.setitem(backends.LOADERS, "abacus", missing)
    err = said("classify", "--backend", "abacus", code=2).err
    assert err.splitlines() == ["gpurbf classify: no abacus found: buy one"]


def test_info_names_every_backend_and_why_it_is_missing(said, monkeypatch):
    monkeypatch.setitem(backends.LOADERS, "abacus", missing)
    out = said("info").out
    for name in backends.LOADERS:
        assert f"\n  {name} " in out
    assert "abacus" in out and "no abacus found: buy one" in out
    assert gpurbf.__version__ in out and "scikit-learn" in out


def test_variables_that_name_nothing_are_one_line_and_exit_code_2(said, monkeypatch):
    monkeypatch.setenv("GPURBF_BACKEND", "abacus")
    (line,) = said("classify", code=2).err.splitlines()
    assert "'abacus'" in line and "GPURBF_BACKEND" in line
    monkeypatch.setenv("GPURBF_CPU_KERNEL", "beads")
    out = said("info").out
    assert "'abacus'" in out and "'beads'" in out


def test_every_command_has_help(said):
    everything = said().out
    for command, summary in COMMANDS.items():
        assert command in everything
        assert f"gpurbf {command}" in said(command, "--help").out
        module = importlib.import_module(module_of(command))
        assert module.__doc__.splitlines()[0] == summary
    assert said("--version").out == f"gpurbf {gpurbf.__version__}\n"


def test_help_imports_no_library():
    code = "import sys; from gpurbf.cli import main; main([]); print(*sys.modules)"
    done = run_python(code)
    assert not {"numpy", "scipy", "sklearn", "numba"} & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["info", "classify --estimator svc"])
def test_a_reader_who_has_seen_enough_gets_no_traceback(command, tmp_path):
    code = "import sys; from gpurbf.cli import main; sys.exit(main(sys.argv[1:]))"
    call, pipe = [sys.executable, "-c", code, *command.split()], subprocess.PIPE
    with subprocess.Popen(call, stdout=pipe, stderr=pipe, cwd=tmp_path) as program:
        program.stdout.close()
        assert program.stderr.read() == b"" and program.wait() == 1


GPURBF = sys.executable, "-m", "gpurbf"
PROFILE = "profile --quick --centers 50 --backend numpy"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", ["info", "classify --backend numpy --estimator svc", PROFILE])
def test_a_full_disk_is_one_line_and_exit_code_2(command, tmp_path):
    with open("/dev/full", "w") as full:
        call = [*GPURBF, *command.split()]
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    *progress, last = done.stderr.splitlines()
    assert last == f"gpurbf {command.split()[0]}: [Errno 28] No space left on device"
    assert done.returncode == 2 and all("Err" not in line for line in progress)


@pytest.mark.parametrize("number", [1, 2])
def test_a_command_runs_with_a_closed_output(number, tmp_path):
    (tmp_path / "program.py").write_text("import sys; sys.stdout.flush(), sys.stderr.flush()")
    shell = ["sh", "-c", f'exec "$@" {number}>&-', "sh", *GPURBF, "run", tmp_path / "program.py"]
    assert subprocess.run(shell).returncode == 0


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc")
@pytest.mark.parametrize(
    ("command", "imports"), [("classify --backend numpy", "numpy"), ("warmup", "llvmlite")]
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_command(command, imports, number, tmp_path):
    call, pipe = [*GPURBF, *command.split()], subprocess.PIPE
    options = {"cwd": tmp_path, "text": True, "start_new_session": True}
    with interrupts(), subprocess.Popen(call, stdout=pipe, stderr=pipe, **options) as program:
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
        while program.poll() is None:
            maps = (Path(f"/proc/{child}/maps") for child in children.read_text().split())
            if any(imports in each.read_text() for each in maps):
                break
            time.sleep(0.01)
        # Ctrl-C reaches them all.
        (os.killpg if number == signal.SIGINT else os.kill)(program.pid, number)
        try:
            printed, errors = program.communicate(timeout=60)  # all have closed the pipes
        finally:
            with suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    assert "float64" not in printed  # which the warmup's processes say later
    if number == signal.SIGINT:
        assert "interrupted" in errors and "SpawnProcess" not in errors


def test_a_terminal_without_these_letters_shows_others(tmp_path):
    code = "from gpurbf.cli import main; main(['classify', '--estimator', 'svc'])"
    done = run_python(code, cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert "test images of 8 ? 8, 10 classes" in done.stdout


def test_a_broken_pipe_of_a_program_is_shown(tmp_path):
    (tmp_path / "program.py").write_text("raise BrokenPipeError('a socket')")
    code = "import sys; from gpurbf.cli import main; sys.exit(main(['run', 'program.py']))"
    done = run_python(code, check=False, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr.endswith("BrokenPipeError: a socket\n")


def test_an_error_of_a_program_goes_to_its_own_hook(tmp_path):
    hook = "import sys; sys.excepthook = lambda kind, *rest: print(kind.__name__)\n"
    (tmp_path / "program.py").write_text(hook + "raise TimeoutError")
    code = "import sys; from gpurbf.cli import main; sys.exit(main(['run', 'program.py']))"
    done = run_python(code, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "TimeoutError\n", "")


def test_a_program_may_close_its_output(tmp_path):
    (tmp_path / "program.py").write_text("import sys; sys.stdout.close(); sys.exit(3)")
    code = "import sys; from gpurbf.cli import main; sys.exit(main(['run', 'program.py']))"
    done = run_python(code, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (3, "")


def test_named_data_are_sought_in_the_folder_of_the_variable_and_the_error_names_the_option(
    said, monkeypatch, tmp_path
):
    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", offline)
    monkeypatch.setattr(datasets, "_SYSTEM", tmp_path)
    monkeypatch.setenv("GPURBF_TEST_DATA", "no/such/folder")
    error = said("classify", "--data", "mnist", code=2).err.splitlines()[-1]
    assert "no/such/folder" in error and "--data" in error


@pytest.mark.parametrize("architecture", ["Haswell", "SkylakeX"])
@pytest.mark.parametrize("features", [{"avx2"}, {"avx2", "avx512f"}])
def test_info_says_where_blas_leaves_vectors_idle(said, monkeypatch, architecture, features):
    library = {"user_api": "blas", "internal_api": "openblas", "version": "0.3.30"}
    library["architecture"] = architecture
    monkeypatch.setattr(machine, "threadpool_info", lambda: [library])
    monkeypatch.setattr(machine, "cpu_features", lambda: frozenset(features))
    (line,) = (line for line in said("info").out.splitlines() if " BLAS " in line)
    assert f"openblas 0.3.30, kernels for {architecture}" in line
    idle = architecture == "Haswell" and "avx512f" in features
    assert ("OPENBLAS_CORETYPE=SkylakeX" in line) == idle


def test_warmup_says_what_it_compiles_and_where_it_is_kept(said, capsys, monkeypatch):
    monkeypatch.setattr(warmup, "_KINDS", {"uint8": lambda X: X.astype("u1")})
    called, address = set(), consumers.consumer_address
    monkeypatch.setattr(
        consumers, "consumer_address", lambda name, *of: (called.add(name), address(name, *of))[1]
    )
    for svc in (True, False):
        warmup.use("numba", svc)
    assert called == set(consumers.CONSUMERS)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["SVC", "others"]
    assert all(line.endswith(" s") for line in lines)
    nobody = nullcontext(SimpleNamespace(map=lambda *_: []))  # other processes, below
    monkeypatch.setattr(warmup, "Processes", lambda n: nobody)
    assert said("warmup", "--backend", "numba").out.startswith("kernels are kept in ")


AFTER_A_WARMUP = """
import sys
from pathlib import Path
import numpy as np
from sklearn.datasets import make_classification
import gpurbf
from gpurbf.cli import main, warmup

assert main(["warmup"]) == 0
kept = set(Path(sys.argv[1]).rglob("*.nbc"))
for n, classes in ((300, 2), (1200, 10), (5000, 3)):
    given, y = make_classification(n, 20, n_informative=8, n_classes=classes, random_state=0)
    models = [gpurbf.SVC(kernel=kernel, max_iter=1000) for kernel in warmup.KERNELS]
    models += [gpurbf.SVC(kernel="linear", max_iter=1000, cache_size=0.01)]
    for solver in ("ridge", "cg"):
        models += [gpurbf.RBFClassifier(m, solver=solver) for m in (50, 290)]
    models += [gpurbf.RBFClassifier(290, precision=p) for p in ("float32", "float64")]
    models += [gpurbf.RBFClassifierCV(n_centers=60), gpurbf.FSVC()]
    models += [gpurbf.FSVC.published(60.0, learning_rate=0.01)]
    for metric in warmup.METRICS:
        models += [gpurbf.RBFLayer(30, kernel=k, metric=metric) for k in warmup.PROFILES]
    if n == 5000:  # SVC alone does something else where there are many
        models = [model for model in models if isinstance(model, gpurbf.SVC)]
    for kind, convert in warmup._KINDS.items():
        X = convert(np.pad(np.clip(10 * given + 100, 0, 255), [(0, 0), (0, 20)]))
        for model in models:
            model.fit(X, y)
            for method in ("predict", "decision_function", "transform"):
                if hasattr(model, method):
                    getattr(model, method)(X[:200]), getattr(model, method)(X[:1])
            new = set(Path(sys.argv[1]).rglob("*.nbc")) - kept
            assert kept and not new, (kind, model, new)
"""


def test_warmup_for_a_backend_by_name_includes_sparse_samples_but_for_svc(capsys, monkeypatch):
    kind = "wide, sparse"
    monkeypatch.setattr(warmup, "_KINDS", {kind: warmup._KINDS[kind]})
    monkeypatch.setattr(warmup, "_models", lambda backend: [(gpurbf.RBFLayer(5), 2)])
    for svc in (True, False):
        warmup.use("numba", svc)
    assert capsys.readouterr().out.startswith("others, wide, sparse ")


@pytest.mark.slow
def test_after_a_warmup_first_fits_compile_nothing(tmp_path):
    run_python(AFTER_A_WARMUP, tmp_path, cwd=tmp_path, NUMBA_CACHE_DIR=str(tmp_path))


def test_profile_prints_a_table_and_writes_a_picture(said, tmp_path):
    pytest.importorskip("matplotlib")
    out = tmp_path / "profile.png"
    arguments = ("--quick", "--centers", 100, "--backend", "numpy", "--out", out)
    text, progress = said("profile", *arguments)
    assert progress.split() == "reading warming up fitting predicting".split()
    assert "1,400 × 64 samples, 100 centers" in text and "| hidden layer " in text
    assert "Training: " in text and "Prediction: " in text and f"written: {out}" in text
    assert out.read_bytes().startswith(b"\x89PNG")


def test_profile_writes_all_rows_as_csv(monkeypatch, tmp_path):
    monkeypatch.delenv("GPURBF_TEST_DATA", raising=False)
    out = tmp_path / "profile.csv"
    assert call("profile", "--estimator", "svc", "--out", out) == 0  # digits, without a folder
    rows = list(csv.DictReader(out.read_text("utf-8").splitlines()))
    assert any(row["part"] == "files" and float(row["seconds"]) > 0 for row in rows)
    shares = [float(row["share"]) for row in rows if row["phase"] == "training" and not row["part"]]
    assert sum(share for share in shares if share > 0) == pytest.approx(1)


def test_what_is_recorded_to_model_more_threads_has_two(monkeypatch):
    seen = []

    def caught(estimator, *rest, **options):
        seen.append(estimator.n_jobs)
        raise ValueError("enough")

    monkeypatch.setattr("gpurbf.cli.profile.profile_data", caught)
    for arguments in ([], ["--threads", "4,16"]):
        assert call("profile", "--quick", *arguments) == 2
    assert seen == [None, 2]


def test_profile_models_more_threads(said, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ["profile", "--quick", "--centers", 100, "--threads", "1,16", "--out"]
    text = said(*arguments, tmp_path / "scaling.png").out
    assert "modelled:" in text and "|       1 |" in text and "|      16 |" in text
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert call(*arguments, tmp_path / "scaling.csv") == 0
    lines = (tmp_path / "scaling.csv").read_text("utf-8").splitlines()
    assert [row["threads"] for row in csv.DictReader(lines)] == ["1", "16"]
