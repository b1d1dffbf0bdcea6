"""The command line: `commands` is the `vitplast` program, `compute` its commands that make one result."""

from vitplast.cli.commands import app, main

__all__ = ["app", "main"]
