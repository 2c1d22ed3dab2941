"""Notes every reply that the schema's tests get: status, cost, whether it is a replay, operation."""

import os

import schemathesis


@schemathesis.hook
def after_call(context, case, response):
    def header(name):
        values = response.headers.get(name) or ["-"]
        return values[0]

    line = [str(response.status_code), header("tollgate-cost"), header("idempotent-replayed"), case.operation.label]
    with open(os.environ["REPLIES"], "a", encoding="utf-8") as replies:
        replies.write("\t".join(line) + "\n")
