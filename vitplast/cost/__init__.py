"""What a run costs before it runs: operations, memory, disk and time, from the shape of the model and the recipe."""
