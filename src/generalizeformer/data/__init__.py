"""Domains: pixels and labels in, batches out. Knows no models."""
