"""Operators as plain functions of arrays."""
