"""Codes SL02: names. Each function takes meaning and writes the prose."""

from __future__ import annotations
