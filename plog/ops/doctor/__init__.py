"""`plog doctor`: checks of a host, of a running broker, and of the Python in which Spark runs."""
