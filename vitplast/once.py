"""A number that is computed when it is first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once(compute: Callable[[], T]) -> Callable[[], T]:
    """`compute` with its first result kept.

    Examples
    --------
    >>> calls = []
    >>> kept = once(lambda: calls.append(1) or len(calls))
    >>> kept(), kept()
    (1, 1)
    """
    kept: list[T] = []

    def call() -> T:
        if not kept:
            kept.append(compute())
        return kept[0]

    return call
