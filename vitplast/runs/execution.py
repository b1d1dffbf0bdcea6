"""A notebook run by papermill in this process: what goes in, where output and log go, and what must be true after."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitplast.errors import InputError, UnknownNameError, VitplastError

if TYPE_CHECKING:
    from vitplast.runs.unit import Unit


def log_path(store: Path, unit: Unit) -> Path:
    """Text log of the unit's last run."""
    return store / "logs" / unit.kind / f"{unit.label}.log"


def executed_path(store: Path, unit: Unit) -> Path:
    """The unit's executed notebook, after success."""
    return store / "notebooks" / unit.kind / f"{unit.label}.ipynb"


def failed_path(store: Path, unit: Unit) -> Path:
    """The unit's notebook as far as it got, after failure."""
    return store / "failed" / unit.kind / f"{unit.label}.ipynb"


def injected(unit: Unit) -> dict[str, Any]:
    """The parameters that the notebook gets. Its store comes through the environment, so no path is written down."""
    return {name: value for name, value in unit.parameters.to_dict().items() if name != "store"}


def check_names(unit: Unit, notebook: Path) -> None:
    """Refuses parameters that the notebook does not have, which papermill would only warn about.

    Raises
    ------
    UnknownNameError
        With the nearest names.
    InputError
        If the notebook can't be read, or has no cell tagged `parameters`.
    """
    import papermill

    opened = _opened(notebook)
    logger = logging.getLogger("papermill")
    before, logger.level = logger.level, logging.WARNING
    try:
        known = papermill.inspect_notebook(opened)
    finally:
        logger.level = before
    if not known:
        raise InputError(f"{notebook} has no parameters: no cell has the tag 'parameters'")
    for name in injected(unit):
        if name not in known:
            raise UnknownNameError(f"parameter of {notebook.name}", name, known)


def _opened(notebook: Path) -> Any:
    """The notebook as a Python one whatever its metadata say: the author's kernel, or nothing after nbstripout."""
    import nbformat

    try:
        found = nbformat.read(notebook, as_version=4)
        nbformat.validate(found)
    except Exception as error:
        raise InputError(f"{notebook} is not a notebook that can be read ({type(error).__name__}: {error})") from error
    found.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return found


def execute(
    unit: Unit,
    notebook: Path,
    store: Path,
    env: dict[str, str],
    time_limit: int | None,
    start_limit: int,
    progress: bool,
) -> None:
    """Runs the notebook; publishes it under `notebooks/` when it ended well, keeps it under `failed/` otherwise.

    Raises
    ------
    VitplastError
        With the reason in words.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    final, failed = executed_path(store, unit), failed_path(store, unit)
    try:
        for folder in (final.parent, failed.parent, log_path(store, unit).parent):
            folder.mkdir(parents=True, exist_ok=True)
        for left in final.parent.glob(f".{unit.label}.*"):
            left.unlink()
    except OSError as error:
        raise VitplastError(f"can't write to the store: {error}") from error
    working = final.with_name(f".{unit.label}.{os.getpid()}.ipynb")
    try:
        with _logged(log_path(store, unit)), _private_folder() as private:
            copy = private / notebook.name
            nbformat.write(_opened(notebook), copy)
            try:
                executed = papermill.execute_notebook(
                    _literal(copy),
                    _literal(working),
                    parameters=injected(unit),
                    kernel_name="python3",
                    kernel_manager_class=kernel_manager(private, env),
                    shutdown_kernel="immediate",
                    progress_bar=progress,
                    log_output=True,
                    start_timeout=start_limit,
                    execution_timeout=time_limit,
                )
            except papermill.PapermillExecutionError as error:
                logging.getLogger("papermill").error("%s", error)
                raise VitplastError(f"cell {error.exec_count}: {error.ename}: {error.evalue}") from error
            except DeadKernelError as error:
                raise VitplastError("the kernel was killed, likely for lack of memory") from error
            except CellTimeoutError as error:
                raise VitplastError(f"a cell took longer than {time_limit} s and was stopped") from error
            except (OSError, RuntimeError, ValueError) as error:
                logging.getLogger("papermill").exception("papermill stopped")
                raise VitplastError(f"papermill stopped: {type(error).__name__}: {error}") from error
        _check_metadata(executed, unit)
        _publish(executed, unit, notebook, working, final)
        failed.unlink(missing_ok=True)
    finally:
        with contextlib.suppress(OSError):
            if working.exists():
                os.replace(working, failed)


def _check_metadata(executed: Any, unit: Unit) -> None:
    record = executed.metadata.get("papermill", {})
    if not record.get("end_time") or record.get("exception"):
        raise VitplastError("the executed notebook does not say that it ended well")
    if dict(record.get("parameters", {})) != injected(unit):
        raise VitplastError("the executed notebook records other parameters than those asked for")


def _publish(executed: Any, unit: Unit, notebook: Path, working: Path, final: Path) -> None:
    import nbformat

    executed.metadata["papermill"]["input_path"] = notebook.name
    executed.metadata["papermill"]["output_path"] = final.name
    try:
        with open(working, "w", encoding="utf-8") as file:
            file.write(nbformat.writes(executed) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(working, final)
    except OSError as error:
        raise VitplastError(f"{final} was not written: {error}; make room and run the same command again") from error


def _literal(path: Path) -> str:
    """The path for papermill, which fills parameters into braces."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vitplast-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def kernel_manager(private: Path, env: dict[str, str]) -> type:
    """A kernel manager of this very interpreter that talks through socket files, which can't be taken by others.

    Where these are not to be had (Windows, a path of over about 100 characters) it uses TCP.
    """
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec

    class Manager(AsyncKernelManager):
        def __init__(self, **options: Any) -> None:
            if sys.platform != "win32" and len(str(private)) < 80:
                options |= {"transport": "ipc", "connection_file": str(private / "kernel.json")}
            super().__init__(**options)

        @property
        def kernel_spec(self) -> KernelSpec:
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=command, display_name="Python 3", language="python")

        async def start_kernel(self, **options: Any) -> None:
            await super().start_kernel(**{**options, "env": {**os.environ, **env}})

    return Manager


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """What papermill and the cells say goes to the file `path`, not to the screen."""
    logger = logging.getLogger("papermill")
    before = logger.level, logger.propagate
    try:
        handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    except OSError as error:
        raise VitplastError(f"can't write to the store: {error}") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.level, logger.propagate = before
