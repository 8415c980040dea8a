"""One serving engine: vLLM behind the router's seam, with hand-over of KV caches, weight versions, sleep and health.

    config      what an engine is told at its start
    backend     the seam to a serving library, which a test can fake
    vllm_backend  the one module that knows vLLM's API, and where its versions differ
    nixl, extension   loaded by vLLM inside the engine's own process
    handover    roles as a routing decision: orders to keep and to pull a KV cache
    engine      legs, statuses and transitions over a backend
    health      canaries
    coalesce    fewer, larger chunks

Importing this package imports neither vLLM nor torch.
"""
