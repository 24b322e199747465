"""The pages that a broker serves over HTTP: their server, their paths, and the health checks."""
