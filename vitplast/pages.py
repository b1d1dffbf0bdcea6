"""Executes the pages of the book several at a time, before Sphinx reads them one by one.

A Sphinx extension. Each page still has a kernel of its own. What was executed is handed to MyST-NB through a cache
that is made for this build and removed with it, so that no page shows numbers of an earlier one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path, PurePosixPath
from typing import Any

from vitplast.errors import InputError


def jobs() -> int:
    """Pages executed at a time: $VITPLAST_JOBS, else one a core.

    Raises
    ------
    InputError
        If the variable holds no whole number above 0.
    """
    from vitplast.results.provenance import cores

    text = os.environ.get("VITPLAST_JOBS", "")
    if text and (not text.isascii() or not text.isdigit() or int(text) < 1):
        raise InputError(f"VITPLAST_JOBS must be a whole number above 0, got {text!r}")
    return int(text or cores())


class Kernels:
    """Executes notebooks in kernels of this interpreter, and can end all of them at once."""

    def __init__(self, timeout: int | None, env: dict[str, str]) -> None:
        self.timeout, self.env = timeout, env
        self._managers: list[Any] = []
        self._lock = threading.Lock()
        self._ended = False

    def execute(self, notebook: Any, folder: Path) -> float:
        """Fills in the outputs of a notebook that runs in `folder`; returns the seconds that it took.

        Raises
        ------
        Exception
            What nbclient raises; the outputs up to there are kept.
        """
        from nbclient import NotebookClient

        from vitplast.runs.execution import kernel_manager

        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="vitplast-", ignore_cleanup_errors=True) as private:
            manager = kernel_manager(Path(private), self.env)()
            with self._lock:
                if self._ended:
                    raise InterruptedError("the build was stopped")
                self._managers.append(manager)
            client = NotebookClient(
                notebook,
                km=manager,
                timeout=self.timeout,
                resources={"metadata": {"path": str(folder)}},
                shutdown_kernel="immediate",
                record_timing=False,  # times would be part of the cells, which then are not found in the cache
            )
            asyncio.run(client.async_execute(cleanup_kc=True))
        return time.perf_counter() - start

    def end(self) -> None:
        """Kills all kernels; notebooks that are being executed fail."""
        with self._lock:
            self._ended = True
            for manager in self._managers:
                process = getattr(manager.provisioner, "process", None)
                if process is not None and process.poll() is None:
                    with contextlib.suppress(OSError):
                        os.kill(process.pid, signal.SIGKILL if os.name == "posix" else signal.SIGTERM)


def execute_all(
    notebooks: dict[Path, Any], timeout: int | None, number: int, say: Callable[[str], None]
) -> dict[Path, float | str]:
    """Executes notebooks in place, each in the folder of its file, `number` at a time, those with most cells first.

    Returns the seconds of each, or what went wrong: the cell and its error. The cores are shared out between them.
    """
    from vitplast.results.provenance import cores

    number = max(1, min(number, len(notebooks)))
    threads = str(max(1, cores() // number))
    env = {n: os.environ.get(n, threads) for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    kernels = Kernels(timeout, env)
    done: dict[Path, float | str] = {}

    def one(path: Path) -> None:
        try:
            done[path] = kernels.execute(notebooks[path], path.parent)
        except Exception as error:
            done[path] = _fault(notebooks[path], error)
        say(f"{path.name}: {'failed' if isinstance(done[path], str) else f'executed in {done[path]:.0f} s'}")

    order = sorted(notebooks, key=lambda path: -sum(c.cell_type == "code" for c in notebooks[path].cells))
    with ThreadPoolExecutor(number, thread_name_prefix="page") as pool:
        try:
            futures = [pool.submit(one, path) for path in order]
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            kernels.end()
            raise
    return {path: done[path] for path in notebooks}


def _fault(notebook: Any, error: Exception) -> str:
    """The number of the cell that failed and its error, in words."""
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    number = next((i for i, c in enumerate(cells, 1) if any(o.output_type == "error" for o in c.outputs)), None)
    where = f"cell {number} of {len(cells)}: " if number else ""
    return f"{where}{type(error).__name__}: {error}"


def execute_pages(app: Any, env: Any, docnames: Iterable[str]) -> None:
    """Executes the pages that are about to be read; all that fail are named at once.

    Raises
    ------
    sphinx.errors.ExtensionError
        If a cell failed or took too long; it names the page and the cell, and shows the traceback.
    """
    from jupyter_cache import get_cache
    from jupyter_cache.base import CacheBundleIn
    from sphinx.errors import ExtensionError
    from sphinx.util import logging

    config = env.mystnb_config
    if config.execution_mode != "force":
        return
    log = logging.getLogger(__name__)
    found = {Path(env.doc2path(name)): name for name in docnames}
    notebooks = {path: nb for path in found if (nb := _notebook(path, env)) is not None}
    if not notebooks:
        return
    number = jobs()
    log.info(f"executing {len(notebooks)} pages, {number} at a time")
    start = time.perf_counter()
    done = execute_all(notebooks, config.execution_timeout, number, log.info)
    failed = {found[path]: fault for path, fault in done.items() if isinstance(fault, str)}
    if failed:
        words = "\n".join(f"{name}: {fault}" for name, fault in failed.items())
        raise ExtensionError(f"{len(failed)} of {len(notebooks)} pages failed: {', '.join(failed)}\n{words}")
    log.info(f"executed {len(notebooks)} pages in {time.perf_counter() - start:.0f} s")
    folder = tempfile.TemporaryDirectory(prefix="vitplast-pages-", ignore_cleanup_errors=True)
    app.connect("build-finished", lambda app, error: folder.cleanup())
    cache = get_cache(folder.name)
    for path, notebook in notebooks.items():
        bundle = CacheBundleIn(notebook, str(path), data={"execution_seconds": done[path]})
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
    env.mystnb_config = config.copy(execution_mode="cache", execution_cache_path=folder.name)


def _notebook(path: Path, env: Any) -> Any:
    """The page as a notebook; None if it is none, or is not to be executed."""
    from myst_nb.core.read import create_nb_reader

    if any(PurePosixPath(path.as_posix()).match(p) for p in env.mystnb_config.execution_excludepatterns):
        return None
    text = path.read_text(encoding="utf-8")
    reader = create_nb_reader(str(path), env.myst_config, env.mystnb_config, text)
    notebook = reader.read(text) if reader else None
    return notebook if notebook and any(c.cell_type == "code" for c in notebook.cells) else None


def setup(app: Any) -> dict[str, Any]:
    """Sphinx extension: pages are executed before they are read."""
    app.connect("env-before-read-docs", execute_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
