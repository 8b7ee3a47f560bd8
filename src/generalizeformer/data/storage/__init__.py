"""Files behind datasets: trees of images, zips, tables, idx files; the cache; checks and downloads."""
