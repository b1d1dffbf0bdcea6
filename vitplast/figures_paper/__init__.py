"""What the part "Reproduce the paper" shows: tables and figures that are computed from a profile before anything runs.

`design` counts runs and files, `variants` compares two variants of a profile, `data_sets` tells how sets lie on the
disk, `cost` draws the cost plan, `hour` what a small subset can decide, `engine` how jobs share GPUs, `families` what
the components of other models are.
"""
