"""Declared peaks of devices, each number with its source."""
