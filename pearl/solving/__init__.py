"""Solving: protocol, neutral rows, formulation, lexicographic driver, exact re-check, diagnosis, conformance."""
