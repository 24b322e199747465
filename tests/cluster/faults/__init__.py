"""Faults of one broker, of ZooKeeper or of the network, while clients work with the cluster."""
