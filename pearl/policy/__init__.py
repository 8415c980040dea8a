"""The policy language: YAML with source spans, to a typed policy, to rows bound to the facts of one decision."""
