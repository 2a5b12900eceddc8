"""The cases of a Python client: each is a function, and one line is printed of it: its name, ok or failed, and the reason, between tabs."""

import sys
import traceback

CASES = []


def case(function):
    """Adds a case; they run in the order of the file."""
    CASES.append(function)
    return function


def run_cases():
    """Runs the cases that the command line names; all if it names none."""
    chosen = sys.argv[1:]
    for function in CASES:
        name = function.__name__.replace("_", "-")
        if chosen and name not in chosen:
            continue
        try:
            function()
            print(f"{name}\tok\t", flush=True)
        except Exception as error:
            traceback.print_exc()
            reason = (str(error) or type(error).__name__).replace("\t", " ").replace("\n", " ")[:300]
            print(f"{name}\tfailed\t{reason}", flush=True)
