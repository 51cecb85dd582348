"""The log of a resource: immutable operations, and the one merged view that follows from them. Pure.

operation   what happened: an operation, its verdict, the replies of sites
clock       hybrid logical clock: stamps that extend causality
vector      version vectors: what is known, what came before what
matrix      how two types of operation combine
rules       rules 1 to 8 of the merge, each with one home
history     the merge, incrementally
plan        what a site must run to get from what it applied to what is effective
"""
