"""One GPU for each job of a machine: a slot is held by a file lock for as long as the job's process lives.

`python -m vitplast.workflow.devices --slots 0,1 --folder LOCKS -- COMMAND` waits for a free slot, sets
CUDA_VISIBLE_DEVICES to its GPU and becomes COMMAND. The lock goes with the process, so a job that is killed gives its
GPU back. A GPU that is named twice takes two jobs at a time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vitplast.errors import AlreadyRunningError, InputError


def take(slots: Sequence[str], folder: str | Path, wait: float | None = None) -> tuple[str, int]:
    """The GPU of the first free slot, and the open file whose lock holds it until the process ends or closes it.

    Parameters
    ----------
    slots : sequence of str
        What CUDA_VISIBLE_DEVICES may say for each slot: numbers or UUIDs. The same GPU may be there more than once.
    folder : path
        Where the lock files are; the same for all jobs of the machine.
    wait : float, optional
        Longest time to wait in seconds; None: for ever.

    Returns
    -------
    (str, int) : GPU and file descriptor. The descriptor outlives `os.exec`, and children started by `subprocess`
    don't get it.

    Raises
    ------
    InputError
        If there is no slot.
    AlreadyRunningError
        If none was free for `wait` seconds.
    """
    import fcntl

    if not slots:
        raise InputError("there is no GPU to hand out: slots is empty; name them as in CUDA_VISIBLE_DEVICES, e.g. 0,1")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    limit = None if wait is None else time.monotonic() + wait
    while True:
        for number, device in enumerate(slots):
            handle = os.open(folder / f"gpu-slot-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.set_inheritable(handle, True)
                return device, handle
            os.close(handle)
        if limit is not None and time.monotonic() >= limit:
            raise AlreadyRunningError(f"all {len(slots)} GPU slots were taken for {wait:g} s: {', '.join(slots)}")
        time.sleep(0.2)


def visible() -> list[str]:
    """The GPUs that this process may use: those of CUDA_VISIBLE_DEVICES if it is set, else all that torch finds."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name.strip() for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def main(argv: Sequence[str] | None = None) -> None:
    """Takes a slot and becomes the command after `--`; exit code 2 if the line is wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options, command = (
        (arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :])
        if "--" in arguments
        else (arguments, [])
    )
    given = dict(zip(options[::2], options[1::2], strict=False))
    if set(given) != {"--slots", "--folder"} or len(options) != 4 or not command:
        print("usage: python -m vitplast.workflow.devices --slots 0,1 --folder FOLDER -- COMMAND", file=sys.stderr)
        sys.exit(2)
    device, _ = take([name for name in given["--slots"].split(",") if name], given["--folder"])
    os.environ["CUDA_VISIBLE_DEVICES"] = device
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
