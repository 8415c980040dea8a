"""The router: one HTTP service that completes every accepted request exactly once, whatever the workers do.

`choose`, `lease`, `generation` and `pool` are the core: no clock, no network, no event loop. `dispatch`, `runner` and
`service` run it on asyncio; `server` alone speaks HTTP.
"""
