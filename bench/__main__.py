"""``python -m bench [NAME …] [--json]``: measure all groups of rows, or those named."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from types import FrameType

from bench import table
from bench.rows import GROUPS


def main() -> int:
    """Print the table; its targets are told, not enforced."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(GROUPS):
        parser.error(f"no rows called {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, _end)  # so that daemons are ended then too
    rows: list[table.Row] = []
    for name in asked.names or GROUPS:
        print(f"measuring {name} …", file=sys.stderr)
        rows += GROUPS[name]()
    if asked.json:
        print(json.dumps({"v": 1, "rows": [row.to_json() for row in rows]}, indent=1))
    else:
        print(table.text(rows))
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
