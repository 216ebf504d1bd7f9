"""Codes SL05: functions and operators. Each function takes meaning and writes the prose."""

from __future__ import annotations
