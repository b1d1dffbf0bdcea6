"""Figures of the book's part on experiments, one module a page; each takes labelled data and returns its axes."""
