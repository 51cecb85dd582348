"""All commands: where each is found, and what it says of itself. Nothing is imported before it is called.

The papers' form of `exec` has no word `exec`: a command line that begins with one of its options and names no
command gets it.
"""

from cheops.cli.lazy import Place

_START, _WHERE, _HOW = "Get started", "Say where", "Say how changes combine"
_DO, _LOOK, _SITE, _TRUST = "Operate", "See what is, and why", "Run a site", "Trust it"

COMMANDS = (
    Place(
        "demo",
        _START,
        "demo:demo_command",
        "Play a story with three real sites on this machine: a cut, a conflict, who won and why.",
        "cheops demo --fast",
    ),
    Place(
        "init",
        _START,
        "init:init_command",
        "Write a first configuration file for a site, with comments, valid as it stands.",
        "cheops init --site paris --listen 10.0.0.1:8079 --peer lyon=https://10.0.0.2:8079",
    ),
    Place(
        "exec",
        _DO,
        "run:exec_command",
        "Run a command on a resource, at all its sites; answers are shown as they come.",
        "cheops exec --id counter --sites 'site1 & site2' --type inc --command 'redis-cli incrby counter 13'",
    ),
    Place(
        "delete",
        _DO,
        "change:delete_command",
        "Delete a resource at all its sites; beats everything that is done to it at the same time.",
        "cheops delete counter --command 'redis-cli del counter'",
    ),
    Place("sites", _DO, "change:sites_app", "Change at which sites a resource is."),
    Place(
        "resolve",
        _DO,
        "change:resolve_command",
        "Say what happened where Cheops cannot know; without --happened, list what is open.",
        "cheops resolve counter --op site1:3 --happened yes",
    ),
    Place(
        "wait",
        _DO,
        "status:wait_command",
        "Wait until all sites of a resource have applied the same.",
        "cheops wait counter --for=converged --timeout 60",
    ),
    Place(
        "status",
        _LOOK,
        "status:status_command",
        "Say in one call whether all sites of a resource have applied the same, and who has not.",
        "cheops status counter -o wide",
    ),
    Place(
        "verify",
        _LOOK,
        "verify:verify_command",
        "Compare the real state of the application at every site of a resource, and show how it differs.",
        "cheops verify counter",
    ),
    Place(
        "show",
        _LOOK,
        "run:show_command",
        "Show the state of a resource at each of its sites, by running a command there that changes nothing.",
        "cheops show --id counter --command 'redis-cli get counter'",
    ),
    Place(
        "log",
        _LOOK,
        "log:log_command",
        "List the operations on a resource: a lane per site, and what superseded what by which rule.",
        "cheops log counter -o wide",
    ),
    Place(
        "explain",
        _LOOK,
        "log:explain_command",
        "Explain step by step why the state of a resource is what it is, and what to do about it.",
        "cheops explain counter",
    ),
    Place(
        "get",
        _LOOK,
        "get:app",
        "List what an agent knows: sites, resources, operations, replicants, requests, flows.",
    ),
    Place(
        "describe",
        _LOOK,
        "describe:app",
        "Show everything that is known of one resource, site, operation or replicant.",
    ),
    Place(
        "watch",
        _LOOK,
        "watch:watch_command",
        "Show what happens to a resource, or to all, line by line until Ctrl-C.",
        "cheops watch counter",
    ),
    Place(
        "scope",
        _WHERE,
        "scope:app",
        "Parse and explain scopes: the language in which a request says where it is executed.",
    ),
    Place(
        "matrix",
        _HOW,
        "matrix:app",
        "Show and check matrices: how operations on a resource combine when they meet.",
    ),
    Place(
        "agent",
        _SITE,
        "agent:agent_command",
        "Run the agent of one site, until it is stopped (Ctrl-C, SIGTERM).",
        "cheops agent --config site.yaml",
    ),
    Place("config", _SITE, "config:app", "Check the configuration file of a site."),
    Place("site", _SITE, "site:app", "Invite, see, ping and forget the sites of the mesh."),
    Place("ca", _SITE, "ca:app", "Make the authority of a mesh, and certificates for its sites."),
    Place(
        "token",
        _SITE,
        "token:app",
        "Make, list and revoke the tokens with which people and programs ask.",
    ),
    Place(
        "audit",
        _SITE,
        "audit:audit_command",
        "Show who changed what at a site, from where, and what was refused to whom.",
        "cheops audit --who ci --outcome refused",
    ),
    Place(
        "check",
        _SITE,
        "check:check_command",
        "Look at everything an agent depends on, and say what is wrong and what to do about it.",
        "cheops check -o json",
    ),
    Place(
        "sim",
        _TRUST,
        "sim:sim_command",
        "Simulate many sites under a hostile network, with crashes and skewed clocks, and check what must "
        "hold.",
        "cheops sim --seeds 100",
    ),
)

_EXEC_FLAGS = ("--force", "--dry-run")
_EXEC_OPTIONS = (
    *("--id", "--sites", "--type", "--command", "--config", "--resource-type", "--wait", "--timeout"),
    *("--url", "--output", "-o", "--token-file"),
)


def with_exec(argv: list[str]) -> list[str]:
    """The command line, with the word `exec` where the papers' form leaves it out."""
    names = {place.name for place in COMMANDS}
    left = list(argv)
    while left:
        option, _, value = left.pop(0).partition("=")
        if option in names:
            return argv
        if option not in _EXEC_FLAGS + _EXEC_OPTIONS:
            break
        if option in _EXEC_OPTIONS and not value:
            left[:1] = []
    begins = argv[0].split("=")[0] if argv else ""
    return ["exec", *argv] if begins in _EXEC_FLAGS + _EXEC_OPTIONS else argv
