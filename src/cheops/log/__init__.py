"""The log of a resource: immutable operations, and the one merged view that follows from them. Pure.

What comes in are operations, in causal order; what goes out is the list of effective operations, the fate of every
other, and the plan by which a site gets from what it has applied to what is effective. Two sites that know the same
operations get the same list, whatever the order in which they came. The package imports `cheops.errors` and
`cheops.text`, nothing else of Cheops.

    names       which ids a resource may have
    operation   what happened: an operation, its verdict, the replies of sites
    causality   version vectors (what is known, what came before what) and the hybrid logical clock
    matrix      how two types of operation combine
    rules       rules 1 to 8 of the merge, each with one home
    seals       what all sites have settled for good, and the operations that come too late for it
    history     the merge, one operation at a time; what may be forgotten
    plan        what a site must run
    policy      which sites may operate on a resource, change its sites or its matrix

    history = History(matrices.__getitem__)
    for op in ops:
        history.add(op)
    plan(applied, history.effective, history.matrix).run
"""
