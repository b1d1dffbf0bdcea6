"""Several bad files as one error, so that a user sees all of them at once."""

from __future__ import annotations

from collections.abc import Iterable

from vitplast.errors import IntegrityError


class BadFilesError(IntegrityError):
    """Files of an image set that are not what they should be; `bad` has one line a file."""

    def __init__(self, bad: Iterable[str], hint: str = "") -> None:
        self.bad = tuple(bad)
        super().__init__("; ".join(self.bad) + (f". {hint}" if hint else ""))


class MadeUpError(IntegrityError):
    """A set is invented and the environment does not allow that."""


def raise_all(bad: Iterable[str], hint: str = "") -> None:
    """Raises `BadFilesError` with all lines of `bad`, nothing if there are none."""
    bad = tuple(bad)
    if bad:
        raise BadFilesError(bad, hint)
