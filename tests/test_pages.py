"""Pages executed side by side: the numbers of now, and a failed cell that is named."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import pytest

from vitplast.errors import InputError
from vitplast.pages import execute_all, jobs

CONF = """
project = "made up"
extensions = ["myst_nb", "vitplast.pages"]
nb_execution_mode = "force"
nb_execution_timeout = 60
nb_execution_raise_on_error = True
exclude_patterns = ["_build"]
"""
PAGE = """---
file_format: mystnb
kernelspec:
  name: python3
---

# {title}

```{{code-cell}} ipython3
from pathlib import Path
print("number", Path("number.txt").read_text())
```

```{{code-cell}} ipython3
{last}
```
"""


def notebook(*cells):
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(text) for text in cells]
    return made


def test_notebooks_run_at_once_in_their_folders_and_faults_name_the_cell(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    wait = "import time, os\nfrom pathlib import Path\nPath('{}').touch()\nend = time.time() + 60\n"
    wait += "while not Path('{}').exists():\n    assert time.time() < end\n    time.sleep(0.05)"
    notebooks = {
        tmp_path / "a.md": notebook(wait.format("a", "b"), "os.environ['OMP_NUM_THREADS']"),
        tmp_path / "b.md": notebook(wait.format("b", "a")),
        tmp_path / "c.md": notebook("1", "1 / 0", "2"),
    }
    said = []
    done = execute_all(notebooks, 90, 3, said.append)
    assert list(done) == list(notebooks)
    assert done[tmp_path / "a.md"] > 0
    assert done[tmp_path / "b.md"] > 0, "each of the two waits for the other"
    assert notebooks[tmp_path / "a.md"].cells[1].outputs[0].data["text/plain"].strip("'").isdigit()
    assert done[tmp_path / "c.md"].startswith("cell 2 of 3: CellExecutionError")
    assert "ZeroDivisionError" in done[tmp_path / "c.md"]
    assert "c.md: failed" in said


def test_number_of_jobs(monkeypatch):
    monkeypatch.setenv("VITPLAST_JOBS", "3")
    assert jobs() == 3
    monkeypatch.delenv("VITPLAST_JOBS")
    assert jobs() >= 1
    for bad in ("0", "two", "-1", "1.5"):
        monkeypatch.setenv("VITPLAST_JOBS", bad)
        with pytest.raises(InputError, match=bad):
            jobs()


def build(folder):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-b",
        "html",
        "-E",
        "-a",
        "-W",
        str(folder),
        str(folder / "_build" / "html"),
    ]
    env = os.environ | {"VITPLAST_JOBS": "2", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)


@pytest.mark.slow
def test_a_build_shows_the_numbers_of_now_and_fails_with_the_page_and_cell(tmp_path):
    (tmp_path / "conf.py").write_text(CONF)
    (tmp_path / "number.txt").write_text("41")
    (tmp_path / "index.md").write_text("# Index\n\n```{toctree}\none\ntwo\n```\n")
    (tmp_path / "one.md").write_text(PAGE.format(title="One", last="1"))
    (tmp_path / "two.md").write_text(PAGE.format(title="Two", last="2"))
    first = build(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "executed 2 pages" in first.stdout
    assert "number 41" in (tmp_path / "_build" / "html" / "one.html").read_text()
    (tmp_path / "number.txt").write_text("42")
    assert build(tmp_path).returncode == 0
    assert "number 42" in (tmp_path / "_build" / "html" / "two.html").read_text()
    (tmp_path / "two.md").write_text(PAGE.format(title="Two", last="raise ValueError('wrong')"))
    last = build(tmp_path)
    assert last.returncode != 0
    assert "two: cell 2 of 2" in last.stderr
    assert "wrong" in last.stderr
    assert not list(tmp_path.rglob(".jupyter_cache"))
