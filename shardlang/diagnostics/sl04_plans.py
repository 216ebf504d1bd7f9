"""Codes SL04: plans. Each function takes meaning and writes the prose."""

from __future__ import annotations
