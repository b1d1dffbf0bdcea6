"""Progress and time left on stderr: a bar for people, nothing when the output is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function `progress(done, total)` that moves a bar titled `title`."""
    from tqdm.auto import tqdm

    with tqdm(desc=title, disable=not sys.stderr.isatty(), file=sys.stderr, leave=False) as shown:

        def progress(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield progress
