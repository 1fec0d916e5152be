#!/usr/bin/env bash
# python-constraint2 2.9.0: the constraint "a + b - c == d" is read as a + b + c == d.
#
# python-constraint lists the solutions of constraints over finite sets of values. Kernel Tuner uses it for the parameters of GPU
# kernels. A constraint may be a function or a string, and its README prefers strings, since they are faster. One would expect the same
# solutions from both. If a string compares an expression of three variables with a fourth one, a ready-made constraint for sums or for
# products takes its place, even if the operators differ. So a + b - c is read as a + b + c, a * b - c as a * b * c, and a * b / c as
# a * b * c, too. Solutions are missing, and some of those that are listed do not satisfy the constraint. Nothing warns of it.
#
# A way around it: pass a function, or write "a + b - c + 0 == d".
#
# Seen with python-constraint2 2.9.0, Python 3.11, for a, b, c and d of 1 to 4, with all 256 combinations as the reference:
#   a + b - c == d:     4 solutions as a string, 44 as a function, 4 of the string's are false
#   a + b - c >= d:     255 solutions as a string, 150 as a function, 105 of the string's are false
#   a * b - c == d:     13 solutions as a string, 23 as a function, 13 of the string's are false
#   a * b / c == d:     13 solutions as a string, 32 as a function, 5 of the string's are false
#   a + b - c + 0 == d: 44 solutions as a string, 44 as a function, 0 of the string's are false
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q python-constraint2==2.9.0
"$folder/venv/bin/python" - <<'PYTHON'
from collections.abc import Callable
from itertools import product

from constraint import Problem

values = [1, 2, 3, 4]
combinations = list(product(values, repeat=4))


def solutions(constraint: str | Callable) -> list[tuple]:
    problem = Problem()
    problem.addVariables("abcd", values)
    problem.addConstraint(constraint, None if isinstance(constraint, str) else "abcd")
    return sorted(tuple(found[name] for name in "abcd") for found in problem.getSolutions())


def satisfying(check: Callable) -> list[tuple]:
    return [combination for combination in combinations if check(*combination)]


cases = (
    ("a + b - c == d", lambda a, b, c, d: a + b - c == d, lambda a, b, c, d: a + b + c == d),
    ("a + b - c >= d", lambda a, b, c, d: a + b - c >= d, lambda a, b, c, d: a + b + c >= d),
    ("a * b - c == d", lambda a, b, c, d: a * b - c == d, lambda a, b, c, d: a * b * c == d),
    ("a * b / c == d", lambda a, b, c, d: a * b == c * d, lambda a, b, c, d: a * b * c == d),
    ("a + b - c + 0 == d", lambda a, b, c, d: a + b - c == d, lambda a, b, c, d: a + b - c == d),
)
for text, function, read_as in cases:
    by_text, by_function = solutions(text), solutions(function)
    false = len(set(by_text) - set(by_function))
    counts = f"{len(by_text)} solutions as a string, {len(by_function)} as a function"
    print(f"{text}: {counts}, {false} of the string's are false")
    assert by_function == satisfying(function)
    assert by_text == satisfying(read_as), "the behaviour has changed"
PYTHON
