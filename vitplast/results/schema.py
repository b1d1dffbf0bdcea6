"""What a result file holds: every variable's dimensions, type, unit and meaning, as data.

The tables (one file a kind in `vitplast.results.tables`) check a file (`vitplast.results.validation`) and make the
data dictionary that readers see (`dictionary`). A gathered file has the variables of its kind with a leading
dimension `run`.
"""

from __future__ import annotations

import pandas as pd

from vitplast.errors import UnknownNameError
from vitplast.results.tables.bounds import BOUNDS
from vitplast.results.tables.criteria import CRITERIA
from vitplast.results.tables.depth import DEPTH
from vitplast.results.tables.finetune import FINETUNE
from vitplast.results.tables.gradients import GRADIENTS
from vitplast.results.tables.landscape import LANDSCAPE
from vitplast.results.tables.plasticity import PLASTICITY
from vitplast.results.tables.pretrain import PRETRAIN
from vitplast.results.tables.probe import PROBE
from vitplast.results.tables.search import SEARCH
from vitplast.results.tables.theory import THEORY
from vitplast.results.tables.variable import Schema, Variable

__all__ = ["ATTRIBUTES", "SCHEMAS", "Schema", "Variable", "dictionary", "schema_of"]

#: Attributes that every result carries, with their meaning.
ATTRIBUTES = {
    "title": "what the file holds",
    "source": "how the numbers were made",
    "history": "when, and by which version",
    "references": "the paper",
    "Conventions": "metadata conventions followed",
    "vitplast_schema": "version of these tables",
    "vitplast_version": "version of the package",
    "kind": "what the result holds, the name of its notebook",
    "run_key": "hash of the parameters that decide the numbers",
    "params_json": "all parameters of the run",
    "profile": "profile that asked for the run, or empty",
    "commit": "git commit of the package, or unknown",
    "dirty": "yes if the package had uncommitted changes, no, or unknown",
    "created": "time of writing, UTC",
    "machine": "processor, cores and operating system",
    "device": "where the model ran",
    "threads": "threads of the numerical library, 0 if it was not loaded",
    "torch_version": "version of PyTorch",
    "timm_version": "version of timm",
    "numpy_version": "version of NumPy",
    "python_version": "version of Python",
    "weights_origin": "packaged, hub, file or random",
    "weights_sha256": "SHA-256 of the weights",
    "content_sha256": "SHA-256 of all names, dimensions, types and values",
    "attrs_sha256": "SHA-256 of all attributes",
}

#: Kind of result to its tables.
SCHEMAS = {
    "plasticity": PLASTICITY,
    "bounds": BOUNDS,
    "theory": THEORY,
    "gradients": GRADIENTS,
    "search": SEARCH,
    "finetune": FINETUNE,
    "probe": PROBE,
    "depth": DEPTH,
    "landscape": LANDSCAPE,
    "pretrain": PRETRAIN,
    "criteria": CRITERIA,
}


def schema_of(kind: str) -> Schema:
    """The tables of a kind; UnknownNameError with the nearest names if there is none."""
    if kind not in SCHEMAS:
        raise UnknownNameError("kind of result", str(kind), SCHEMAS)
    return SCHEMAS[kind]


def dictionary(kind: str) -> pd.DataFrame:
    """The data dictionary of a kind: one row a coordinate or variable; columns name, dims, dtype, unit, meaning."""
    table = schema_of(kind)
    rows = []
    for name, variable in (table.coords | table.variables).items():
        meaning = variable.meaning + (f" (missing if {variable.missing})" if variable.missing else "")
        rows.append(
            {
                "name": name,
                "dims": ", ".join(variable.dims) or "none",
                "dtype": variable.dtype,
                "unit": variable.units,
                "meaning": meaning,
            }
        )
    return pd.DataFrame(rows)
