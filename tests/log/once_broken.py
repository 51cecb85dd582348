"""Histories that once broke a law of the merge, and orders of delivery to try them in."""

from tests.log.histories import (
    COUNTER,
    FILE,
    LEVELS,
    LEVELS_UPSIDE_DOWN,
    TOLERANT,
    TOLERANT_LEVELS,
    TOLERANT_TOP,
    TOLERANT_TWICE,
    told,
    told_in_stages,
)

AS_MADE, BACKWARDS = bytes(18), bytes(range(18, 0, -1))
SECOND_LAST = bytes([0, 1, *[0] * 16])

# Each site brings the same matrix, one that lets concurrent operations stay.
TWO_BEGIN = told([TOLERANT], "a1 inc at 0", "c2 set at 9")
# What had stepped behind the first set must step forward when a second set takes that away.
STEPS_FORWARD = told(
    [TOLERANT],
    "a1 inc at 1",
    "a1 note at 2",
    "b1 note at 3",
    "b1 set at 4",
    "c1 set at 5 knowing a1:2 b1:2",
)
# A site that has run the set of b has to run the note before it, and then the set again.
BEFORE_A_BASE = told([TOLERANT], "a1 set at 1", "b1 set at 9", "a1 note at 6 knowing a1:1")
# put-b comes before add-b, on which put-a depends, which comes before add-a.
TWO_STEPS = told(
    [TOLERANT_TWICE],
    "a1 put-a at 7",
    "b1 add-b at 7 knowing a1:1",
    "c2 add-a at 7 knowing a1:1",
    "b1 put-a at 7",
    "c1 put-b at 9",
)
# b's set replaces the increment, then c's set, which lets the increment stay, wins over b's.
COMES_BACK = told([TOLERANT], "a1 inc at 1", "b1 set at 2 knowing a1:1", "c1 set at 3")
# The same by rule 4: y replaces the concurrent x, then z, which lets x stay, replaces y.
COMES_BACK_FROM_BELOW = told([TOLERANT_TOP], "a1 x at 1", "b1 y at 2", "c1 z at 3 knowing b1:1")
# The file's matrix gives way to the counter's twice: once introduced without, once with that past.
SAME_MATRIX_TWICE = told(
    [FILE, COUNTER],
    "a1 add at 1 under file",
    "b1 inc at 2 under counter",
    "a1 set at 3",
    "a1 set at 4 under counter",
)
# The only operation that still carried the matrix in force is superseded, and forgotten.
BRINGER_FORGOTTEN = told_in_stages(
    [COUNTER, FILE, TOLERANT],
    "b1 set at 2",
    "stable b1:1",
    "c1 add at 3 knowing b1:1 under file",
    "a1 set at 3 knowing c1:1 under counter",
    "c1 set at 4",
    "c1 set at 5",
    "stable c1:3 a1:1",
    "c1 set at 7 knowing a1:1 under tolerant",
    "stable c1:3 a1:1",
)
# Something is superseded by a matrix that not everybody knows, and that is never in force for the next one.
MATRIX_NOT_STABLE = told_in_stages(
    [TOLERANT_LEVELS, LEVELS_UPSIDE_DOWN, LEVELS],
    "a1 force at 1",
    "b1 y at 6 knowing a1:1",
    "c2 x at 5 knowing a1:1",
    "c1 y at 5 knowing c2:1 under levels upside down",
    "stable c2:1 b1:1",
    "a1 x at 8 knowing c2:1 b1:1 under levels",
    "stable c2:1 b1:1",
)
