"""``python -m forge_collab.daemon COMMON_DIR``: the daemon of one clone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from forge_collab.core.errors import ForgeError
from forge_collab.daemon.main import run


def main() -> int:
    """Run until stopped; an expected failure is one line of JSON on stderr."""
    try:
        run(Path(sys.argv[1]), dict(os.environ))
    except ForgeError as error:
        print(json.dumps(error.to_json()), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
