"""A rehearsal: a profile in miniature, with made-up data, run as the real one will be.

`numbers` says how each parameter shrinks, `miniature` makes the small profile from the large one, `material` writes
images, texts and a text model, `running` checks, runs and counts. None of it can be taken for a result: the names of
image models begin with `tiny:`, and every result says that images were made up.
"""

from vitplast.rehearsal.miniature import Choice, miniature
from vitplast.rehearsal.running import Rehearsal, RehearsalError, prepare, run, table

__all__ = ["Choice", "Rehearsal", "RehearsalError", "miniature", "prepare", "run", "table"]
