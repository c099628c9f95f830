"""A process of the project that holds no stream: it changes rows as an admin page or a shell would.

Each line on stdin is a JSON string of Python, run with the models at hand; each line of the answer is the JSON of
`result`.
"""

from __future__ import annotations

import json
import sys

import django


def main() -> None:
    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import transaction
    from django.test import Client

    from sse_limits import models

    call_command("migrate", verbosity=0)
    call_command("demo_data", stdout=sys.stderr)
    names = {**vars(models), "User": User, "Client": Client, "transaction": transaction}
    print("ready", flush=True)
    for line in sys.stdin:
        names["result"] = None
        exec(json.loads(line), names)  # noqa: S102 - the test's own lines
        print(json.dumps(names["result"]), flush=True)


if __name__ == "__main__":
    main()
