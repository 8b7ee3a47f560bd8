"""Evidence: runs methods over streams and turns records into tables and pages. No method-specific branches, ever."""
