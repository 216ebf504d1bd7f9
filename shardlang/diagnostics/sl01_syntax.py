"""Codes SL01: syntax. Each function takes meaning and writes the prose."""

from __future__ import annotations
