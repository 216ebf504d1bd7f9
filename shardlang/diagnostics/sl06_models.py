"""Codes SL06: models and FSDP. Each function takes meaning and writes the prose."""

from __future__ import annotations
