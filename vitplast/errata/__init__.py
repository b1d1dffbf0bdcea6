"""Errors and choices of the authors' public code, shown in small: the step as that code does it, and its effect.

Every function here is our own re-implementation of one step, written to demonstrate it; nothing else in the package
uses them. Entries are numbered as on the book page "Errata": A for bounds and plasticity, B for finetuning, evaluation
and statistics. `bounds` has A1 to A4 and B10, `inputs` A5 to A7, `evaluation` B1 to B3, `statistics` B4, B5 and B8,
`schedule` B6 and B7, `landscape` B9; `protocol` holds settings of that code, `reference` numbers of running it.
"""
