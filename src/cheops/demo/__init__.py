"""Three real sites on this machine, for `cheops demo`, the tutorial and the screenshots of docs/ui.md.

    with Sites() as sites:                                # starts agents, applications and the network
        sites.network.cut("site3")                        # site3 reaches no other site
        sites.state("site1", "note", "show", "shopping")  # what the application at site1 itself says
        sites.network.heal()
                                                          # nothing is left: no process, no file

- `sites`    the sites: their files, agents and applications, and a temporary folder that goes with them
- `network`  TCP proxies between the sites, which can be cut and healed, also from the agents' web pages
- `cloud`    minicloud, the HTTP application of the demo, and requests to it
- `guard`    the script that ends and removes what belongs to a demo that was killed
- `apps/`, `minicloud/`  the applications; they know nothing of Cheops

The guided tour itself is `cheops.cli.demo_story`. This package may import anything below `cheops.cli`.
"""
