"""The memory of a GPU shared out between runs that use it at the same time."""

from __future__ import annotations

import shutil

#: Read by training (`vitplast.training.memory`): GiB of the device that a run may take.
VARIABLE = "VITPLAST_MEMORY_GIB"


def share(jobs: int, visible: int | None = None) -> dict[str, str]:
    """Environment for each of `jobs` runs that use the same GPU: the smallest GPU's memory / jobs, in GiB.

    Empty for one job, and on a machine without a GPU; nothing heavy is imported there.

    Parameters
    ----------
    jobs : int
        Runs on one GPU at a time.
    visible : int, optional
        Bytes of the GPU; None: asked of torch.
    """
    if jobs < 2:
        return {}
    if visible is None:
        if not shutil.which("nvidia-smi"):
            return {}
        import torch

        sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())]
        if not sizes:
            return {}
        visible = min(sizes)
    return {VARIABLE: f"{visible / 2**30 / jobs:.2f}"}
