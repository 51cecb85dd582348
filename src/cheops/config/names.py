"""Names of sites, services and types in the configuration file: those that scope-lang takes."""

from cheops.documents import Value
from cheops.scope.names import name_problem, normal


def name_at(value: Value) -> str:
    name = normal(value.string())
    if problem := name_problem(name):
        raise value.fail(problem)
    return name


def named_at(value: Value) -> dict[str, Value]:
    """Names as scope-lang has them, and what stands under each."""
    values = value.mapping()
    for name, at in values.items():
        if problem := name_problem(name):
            raise at.fail(problem)
    return values
