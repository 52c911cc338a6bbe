"""Clients at real sites, reached through Flower: its network, its TLS and its node keys, and our messages.

Needs the extra `flower`. Nothing here is imported unless a federation is.
"""
