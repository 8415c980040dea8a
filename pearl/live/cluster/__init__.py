"""Kind Cluster: YAML to everything that `pearl serve` is told of a live cluster."""
