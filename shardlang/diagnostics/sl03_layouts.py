"""Codes SL03: layouts and sizes. Each function takes meaning and writes the prose."""

from __future__ import annotations
