"""Codes SL07: run time. Each function takes meaning and writes the prose."""

from __future__ import annotations
