"""Solver back ends, one file each, loaded by name through `pearl.solving.registry`."""
