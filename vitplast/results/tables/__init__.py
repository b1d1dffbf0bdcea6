"""The tables of the results, one file a kind."""
