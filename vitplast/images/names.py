"""Names of image sets: NAME, NAME:CORRUPTION, NAME:CORRUPTION:SEVERITY, where NAME may be folder:PATH."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vitplast.errors import InputError, UnknownNameError
from vitplast.images.corruptions import CORRUPTIONS, SEVERITIES
from vitplast.images.registry import FOLDER, REGISTRY, Entry

DEFAULT_SEVERITY = 5
GRAMMAR = "Names are SET, SET:CORRUPTION or SET:CORRUPTION:SEVERITY, and SET may be folder:PATH."


@dataclass(frozen=True)
class Name:
    """A checked name; `corruption` is empty for the clean set."""

    entry: Entry
    path: str = ""
    corruption: str = ""
    severity: int = 0

    @property
    def given(self) -> dict[str, str | int]:
        """Corruption and severity for the loader, where the set has them in files of its own; empty otherwise."""
        return {"corruption": self.corruption, "severity": self.severity} if self.entry.corruptions else {}

    @property
    def suffix(self) -> str:
        return f":{self.corruption}:{self.severity}" if self.corruption else ""

    @property
    def canonical(self) -> str:
        """The full name: two spellings of one set have the same."""
        return (f"folder:{self.path}" if self.path else self.entry.name) + self.suffix

    @property
    def public(self) -> str:
        """The full name without the place of a folder on this machine."""
        return (f"folder:{Path(self.path).resolve().name}" if self.path else self.entry.name) + self.suffix


def parse(text: str, *, whole: bool = False) -> Name:
    """The parts of a name; `whole`: a set that exists only corrupted may be named without its corruption.

    Raises
    ------
    UnknownNameError
        If set or corruption is unknown; gives the nearest.
    InputError
        If it is not text, the severity is not 1..5, there are too many parts, the folder does not exist, or the set
        exists only corrupted and the corruption is not named.
    """
    if not isinstance(text, str) or not text:
        raise InputError(f"the name of an image set must be text, got {text!r}. {GRAMMAR}")
    if text == "folder" or text.startswith("folder:"):
        return _folder(text[len("folder:") :])
    base, *rest = text.split(":")
    if base not in REGISTRY:
        raise UnknownNameError("image set", base, REGISTRY, "A folder of your own is folder:PATH.")
    if len(rest) > 2:
        raise InputError(f"image set name {text!r} has too many parts. {GRAMMAR}")
    own = REGISTRY[base].corruptions
    if own and not rest and not whole:
        raise InputError(f"image set {base!r} needs a corruption, as in {base}:{own[0]}. It has: {', '.join(own)}")
    return Name(REGISTRY[base], "", *_corruption(rest, own or CORRUPTIONS))


def _corruption(parts: list[str], known: tuple[str, ...] = CORRUPTIONS) -> tuple[str, int]:
    if not parts:
        return "", 0
    name, *severity = parts
    if name not in known:
        raise UnknownNameError("corruption", name, known)
    if not severity:
        return name, DEFAULT_SEVERITY
    if severity[0] not in map(str, SEVERITIES):
        raise InputError(f"severity of {name} must be a whole number 1..5, got {severity[0]!r}")
    return name, int(severity[0])


def _folder(rest: str) -> Name:
    """A folder that exists wins, so its path may hold colons; otherwise a corruption is looked for at the end."""
    head, _, last = rest.rpartition(":")
    first, _, middle = head.rpartition(":")
    for path, parts in ((rest, []), (head, [last]), (first, [middle, last])):
        if path and Path(path).expanduser().is_dir():
            return Name(FOLDER, str(Path(path).expanduser()), *_corruption(parts))
    if not rest:
        raise InputError(f"folder: needs a path, as in folder:PATH. {GRAMMAR}")
    raise InputError(f"folder {rest!r} {'is a file' if Path(rest).is_file() else 'does not exist'}. {GRAMMAR}")
