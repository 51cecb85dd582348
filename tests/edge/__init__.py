"""Agents on networks of the edge: NAT, partial meshes, firewalls, narrow and lossy links, IPv6, changing addresses."""
