"""Orders of arrival, one file each: a frozen `Config`, and `arrange` from labels to (target, image) pairs.

`arrange(parts, generator, config, batch_size)` is given the labels of every target and gives back
which image of which target arrives when. A file may say REPEATS: a target may be named twice.
"""
