"""What can go wrong, in classes: the exit code of the command line is `exit_code` of the error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class VitplastError(Exception):
    """Something failed while the work was going on (exit code 1)."""

    exit_code = 1


class InputError(VitplastError, ValueError):
    """Refused before any work started: the value given is not one that is allowed (exit code 2)."""

    exit_code = 2


class UnknownNameError(InputError):
    """A name that is not in a list of known names; the message gives the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        super().__init__(f"unknown {kind} {name!r}. {nearest(name, self.known)}{' ' + hint if hint else ''}")


class ShapeError(InputError):
    """An array or an image of a shape that the operation does not take."""


class LayoutError(InputError):
    """A model whose blocks are not laid out as a plain vision transformer's, or a folder laid out wrongly."""


class MissingDependencyError(InputError):
    """A Python or system package that the operation needs is not installed; the message names it."""


class ModeError(VitplastError):
    """A model in training mode where plasticity is defined in evaluation mode only (Definition 1)."""


class HypothesisError(VitplastError):
    """The data break a hypothesis of the statement that is computed (non-finite values, coinciding pairs...)."""


class PixelError(HypothesisError, InputError):
    """Images with pixels that are NaN or infinite: bad input (exit code 2), for which no statement holds."""

    exit_code = 2


class NoBoundError(VitplastError):
    """No bound is known for this component; the message says why."""


class IntegrityError(VitplastError):
    """A file is not what it should be: hash, checksum, schema or name differ."""


class AlreadyRunningError(VitplastError):
    """Another process holds the lock on this piece of work."""


def nearest(name: str, known: Iterable[str], n: int = 4) -> str:
    """A sentence with the names closest to `name`; all of them when they are few."""
    known = sorted(known)
    by_lower = {k.lower(): k for k in known}
    close = [by_lower[k] for k in difflib.get_close_matches(str(name).lower(), by_lower, n=n, cutoff=0.5)]
    if close:
        rest = "" if len(known) > 12 else f" Known: {', '.join(known)}."
        return f"Did you mean {' or '.join(map(repr, close))}?{rest}"
    return f"Known: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}."
