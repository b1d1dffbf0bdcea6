"""Figures of the theory pages, one file a page; style, colours and markers are those of `vitplast.figures`."""
