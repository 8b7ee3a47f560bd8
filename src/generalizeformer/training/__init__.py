"""Source time: training methods, one file each, with a frozen `Config` and a class that the loop can drive."""
