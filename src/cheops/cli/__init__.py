"""The `cheops` command: from a command line to one call of the agent's API, and its response as a table, JSON or YAML.

A command is one function. Its parameters are its options, its docstring is its help, and it calls the agent: with
`agent(url).call(ENDPOINT, …)`, or with a method of `cheops.client.Agent` where there is one:

    def explain_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
        "Explain step by step why a resource is in its state, and what to do about it."
        response = agent(url).explain(id_)
        emit_answer(output, response, lambda out: draw_explanation(out, response))

To add a command, write its function in the module of its subject, register it, and add a section to docs/cli.md (a
test compares it with the code):

- A command of its own (`cheops status`): add a `CommandEntry` with its name, panel and summary to `commands.COMMANDS`.
- A command of a group (`cheops get sites`): decorate it with `@get_app.command("sites", epilog="Example: …")`. The help
  of the group itself is the summary of its `CommandEntry`; change that if it lists the commands of the group.

If it needs a new endpoint as well, follow the steps in `cheops.api.endpoints`.

- `main`, `tree`, `commands`  the entry point with its exit codes; the tree of commands, and the table of all, imported
                       when called
- `options`, `output`  options and exit codes that commands share; how everything is printed
- `exec`               exec, show: run operations, and show the replies of the sites
- `resources`          delete, sites, resolve: change a resource as a whole
- `status`             status, wait, verify, check: is everything in order
- `history`            log, explain, watch, audit: what happened, and why
- `get`                get, describe: lists and details
- `scope`, `matrix`    scope, matrix: try the two small languages without an agent
- `agent`, `agent_process`, `site`, `security`, `config`  run and set up a site: agent, site, ca, token, init, config
- `demo`, `demo_story`, `sim`            the guided tour, and the simulator

Commands raise `CheopsError`; `main` prints it to standard error and exits with 1. `commands` and `options` import
neither Rich nor the client, because `cheops --help` and shell completion must be fast. The package may import every
other package; no package imports it.
"""
