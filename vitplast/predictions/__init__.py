"""Predictions of plasticity: what the rate of change should be, from weights and a few numbers of the inputs.

Unlike a bound a prediction may be exceeded; it says where the mean rate lies, not what it never passes.
"""
