"""Units of work: one notebook with its parameters, run safely, alone or many in a sweep.

`unit` is one unit, `guard` runs it safely, `execution` its notebook, `runlog` remembers how long that took;
`sets` finds out whether its image sets are there; `plan` reads a profile into units (`reading` its file, `variants` its
variants), `outlook` tells what is left of them, `sweep` runs all of them. On a cluster `vitplast.workflow` does.
"""

from vitplast.places import notebook_path, project_root, result_path, store_folder
from vitplast.runs.guard import done_keys, known_keys, run_unit
from vitplast.runs.plan import Profile, load_profile
from vitplast.runs.unit import Unit

__all__ = [
    "Profile",
    "Unit",
    "done_keys",
    "known_keys",
    "load_profile",
    "notebook_path",
    "project_root",
    "result_path",
    "run_unit",
    "store_folder",
]
