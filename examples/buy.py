"""Buys from tollgate once, with any number of retries."""

import json
import time
import urllib.error
import urllib.request
import uuid

TOLLGATE = "http://127.0.0.1:8080"


def buy(path, order, token=None, key=None):
    key = key or str(uuid.uuid4())
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    for _ in range(5):
        request = urllib.request.Request(TOLLGATE + path, json.dumps(order).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=150) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as refusal:
            problem = json.load(refusal)
            if refusal.code not in (409, 429, 503):
                # The gateway's own refusal has no `code`, and is free.
                name, charged = problem.get("code") or problem.get("error"), problem.get("charged", "no")
                raise RuntimeError(f"{refusal.code} {name}: charged {charged}, key {key}") from refusal
            time.sleep(int(refusal.headers.get("Retry-After", "1")))
        except OSError:
            time.sleep(1)
    raise TimeoutError(f"no answer: charged unknown, key {key}")


reply = buy("/api/v1/chat", {"model": "eta-5-mini", "messages": [{"role": "user", "content": "Hello"}]})
print(reply["message"]["content"])
