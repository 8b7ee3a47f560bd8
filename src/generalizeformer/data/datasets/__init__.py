"""The catalogue of datasets: every plain file has `Config` and `build(config)`."""
