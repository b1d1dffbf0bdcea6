"""Plasticity of vision transformer components: bounds, measurement, component-wise finetuning."""

import os

__version__ = "0.3.0"

if os.environ.get("VITPLAST_OFFLINE", "") not in ("", "0"):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read by the hub's client when timm imports it
