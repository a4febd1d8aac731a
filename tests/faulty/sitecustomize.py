"""Makes a SuperNode or its ClientApp misbehave: Python imports this where PYTHONPATH names its folder.

FEDAPP_FAULTS says what happens in which round, as JSON: {"1": "raise", "2": "nan"}; FEDAPP_CLOCK by how
many seconds the clock is ahead.
"""

import json
import os
import signal
import sys
import time

UPLOAD = "upload stops"
PLAN = json.loads(os.environ.get("FEDAPP_FAULTS", "{}"))


def _change(reply, change):
    import numpy as np
    from flwr.app import Array

    record = reply.content.array_records["arrays"]
    name = next(iter(record))
    record[name] = Array(np.asarray(change(record[name].numpy())))
    return reply


def _put(reply, record, key, value):
    reply.content[record][key] = value
    return reply


def _raise(reply):
    raise OSError("no space left on device")


def _crash(reply):
    os.kill(os.getpid(), signal.SIGKILL)


def _sleep(reply):
    time.sleep(float(os.environ["FEDAPP_SLEEP"]))
    return reply


def _empty(reply):
    for key in list(reply.content):
        del reply.content[key]
    return reply


FAULTS = {
    "raise": _raise,
    "crash": _crash,
    "sleep": _sleep,
    "empty": _empty,
    "nan": lambda reply: _change(reply, lambda x: x * float("nan")),
    "norm": lambda reply: _change(reply, lambda x: x + 1e9),
    "shape": lambda reply: _change(reply, lambda x: x[:-1]),
    "type": lambda reply: _change(reply, lambda x: x.astype("float64")),
    "weight": lambda reply: _put(reply, "clients", "weight", [1e12]),
    UPLOAD: lambda reply: reply,
    "old round": lambda reply: _put(reply, "metrics", "server-round", 0),
}


def _patch():
    from flwr.clientapp import ClientApp

    call = ClientApp.__call__

    def faulty(self, message, context):
        reply = call(self, message, context)
        fault = PLAN.get(message.metadata.group_id)
        if message.metadata.message_type == "train" and fault:
            reply = FAULTS[fault](reply)
        return reply

    ClientApp.__call__ = faulty


def _stop_uploads():
    """Let the SuperNode say that it has a reply, and never send the update that belongs to it."""
    from flwr.supernode.fleet_http_client import FleetHttpClient

    push = FleetHttpClient.PushObject

    def stuck(self, request):
        while len(request.object_content) > 1000:
            time.sleep(1)
        return push(self, request)

    FleetHttpClient.PushObject = stuck


def _set_clock(ahead):
    import datetime

    from flwr.supercore import date

    right = date.now
    date.now = lambda: right() + datetime.timedelta(seconds=ahead)


if "FEDAPP_CLOCK" in os.environ:
    _set_clock(float(os.environ["FEDAPP_CLOCK"]))
if PLAN and any("flwr-clientapp" in word for word in sys.orig_argv):
    _patch()
if UPLOAD in PLAN.values() and any("flower-supernode" in word for word in sys.orig_argv):
    _stop_uploads()
