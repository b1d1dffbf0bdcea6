"""The pieces that `vitplast.finetune` and `vitplast.probe` are made of, one idea a module."""
