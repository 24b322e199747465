"""Who is in the cluster, who leads what, and how everybody hears of it."""
