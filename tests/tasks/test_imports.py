import subprocess
import sys

SLOW = ("torch", "pyarrow", "sklearn", "scipy", "numpy")


def test_tasks_import_nothing_slow() -> None:
    modules = "cloze.tasks.classification.published, cloze.tasks.metrics"
    code = f"import sys, {modules}; print([name for name in {SLOW!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
