"""Produce and Fetch as one readable whole: a broker that tests compare plog with.

Its reactor hands over every request. Its handlers decide about all partitions, wait, and respond.
They use the log and the coordinators of plog, and nothing by which callouts decide
(`tests/test_planes.py`).
"""
