"""Planning: from a decision to the ordered steps with the fewest changes."""
