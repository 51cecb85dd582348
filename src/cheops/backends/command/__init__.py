"""The command backend: operations are command lines, run on this machine.

    async with CommandRunner() as runner:
        completed = await runner.run("redis-cli incrby __ID__ 13", settings, resource="counter")
    completed.status, completed.exit_code, completed.output

Comes in: a line, and the settings of its resource type (what is allowed, user, limits, timeout). Goes out: how it
ended, with its output. Whatever happens, no process of a command survives it.

    backend     the `Backend`: payloads to commands, and exit codes to outcomes
    line        the line: split, checked against the type's patterns, filled in
    paths       whether the paths in it stay below the directory that the operator named
    user_files  copies of the files that came with it, for a command that runs as another user
    runner      runs commands for backends and notifications; hands each to an idle worker
    spawner     the agent's ends of the helper processes
    worker      the helper processes themselves: one spawner, and a worker per running command; idle ones end soon
    program     starts one program: user, limits, environment
    wire        the messages between agent and workers
    typing_names  two names of typing, without its weight

A worker is a child subreaper, so that it can find and kill all descendants of its command; the agent itself must not
be one. `worker`, `program`, `wire` and `typing_names` run in the helper processes with `python -I -S`: they import
nothing but the standard library and each other. For the same reason this file has no code.
"""
