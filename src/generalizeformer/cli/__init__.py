"""Words → calls. The only folder that prints, reads argv or exits. Nothing here imports torch before it must."""
