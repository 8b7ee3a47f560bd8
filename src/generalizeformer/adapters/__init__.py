"""Test-time methods, one file each: a frozen `Config` and `build(source, config)`. A file's name is its method's."""
