"""The control plane of a live cluster: one ledger of the state, the plan's executor, and the controller around them."""
