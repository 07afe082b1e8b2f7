"""Runs each test of the contract suite on every backend."""

from __future__ import annotations

from contract.backends import ALL, places

place = places(*ALL)
