"""Result files: what they hold, one writer and one reader, and many runs gathered into one dataset.

`schema` says what a file of each kind holds and `validation` checks it; `netcdf` writes a file whole or not at all,
`provenance` records where its numbers come from; `store` puts these together, `gathering` joins many files, and
`claiming` tells whether a result is there already.
"""

from vitplast.results.claiming import claim, read
from vitplast.results.gathering import gather, known_keys, missing, singles, write_gathered
from vitplast.results.provenance import environment
from vitplast.results.schema import ATTRIBUTES, SCHEMAS, dictionary, schema_of
from vitplast.results.store import is_gathered, is_valid, lock, quarantine, write

__all__ = [
    "ATTRIBUTES",
    "SCHEMAS",
    "claim",
    "dictionary",
    "environment",
    "gather",
    "is_gathered",
    "is_valid",
    "known_keys",
    "lock",
    "missing",
    "quarantine",
    "read",
    "schema_of",
    "singles",
    "write",
    "write_gathered",
]
