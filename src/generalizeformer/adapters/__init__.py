"""Test-time methods, one file each: a frozen `Config` and `build(source, config)`. The file name is the method's name."""
