"""A cluster without threads, sockets or a clock: the broker's own objects, in a drawn order."""
