"""Codes SL09: internal faults. Each function takes meaning and writes the prose."""

from __future__ import annotations
