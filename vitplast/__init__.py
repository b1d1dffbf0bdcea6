"""Plasticity of vision transformer components: bounds, measurement, component-wise finetuning."""

__version__ = "0.1.0"
