"""φ: generators of target parameters. A plain file is a generator: a frozen `Config` and `build`.

What `build` returns is an nn.Module called with (source parameters, Observation) that gives parameters with
a leading group axis. A fresh one gives the source parameters, bit for bit.
"""
