"""What the finetuning runs say: from gathered runs to a labelled grid, tables, tests and associations."""
