"""What a broken or hostile node may send, by name: each damages a good reply."""

import io
import math

import numpy as np
from flwr.app import Array, Message, RecordDict


def array(values):
    return Array(np.asarray(values))


def first(reply):
    """Return the first array's name, its values, and the record that holds it."""
    record = reply.content.array_records["arrays"]
    name = next(iter(record))
    return name, record[name].numpy().copy(), record


def change(function):
    def damage(message, reply):
        name, values, record = first(reply)
        record[name] = array(function(values))

    return damage


def raises(message, reply):
    raise OSError("no space left on device")


def drop(record):
    def damage(message, reply):
        del reply.content[record]

    return damage


def put(record, key, value):
    def damage(message, reply):
        reply.content[record][key] = value

    return damage


def every(column, value):
    """Report the same of every client."""

    def damage(message, reply):
        clients = reply.content["clients"]
        clients[column] = [value] * len(clients["client"])

    return damage


def rename(message, reply):
    name, _, record = first(reply)
    record["other"] = record.pop(name)


def pickled(message, reply):
    """Send an array of Python objects, which NumPy can only read by unpickling."""
    name, _, record = first(reply)
    buffer = io.BytesIO()
    np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    record[name] = Array("float32", (1,), "numpy.ndarray", buffer.getvalue())


def truncated(message, reply):
    name, _, record = first(reply)
    whole = record[name]
    record[name] = Array(whole.dtype, tuple(whole.shape), whole.stype, whole.data[:-4])


def strangers(message, reply):
    """Report clients that the node was not asked to train."""
    clients = reply.content["clients"]
    clients["client"] = [k + 100 for k in clients["client"]]


def empty(message, reply):
    return Message(RecordDict(), reply_to=message)


def archive(message, reply):
    """Send a zip file, which `numpy.load` would open."""
    name, values, record = first(reply)
    buffer = io.BytesIO()
    np.savez(buffer, values)
    record[name] = Array("float32", values.shape, "numpy.ndarray", buffer.getvalue())


def boasting(message, reply):
    """Send a header that promises a terabyte."""
    name, _, record = first(reply)
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**38,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    record[name] = Array("float32", (2**38,), "numpy.ndarray", buffer.getvalue() + bytes(64))


def heavier(message, reply):
    """Report one example more than each client holds."""
    clients = reply.content["clients"]
    clients["examples"] = [n + 1 for n in clients["examples"]]


DAMAGES = {
    "raises": (raises, "raised", "OSError: no space left on device"),
    "nan": (change(lambda x: np.full_like(x, np.nan)), "not-finite", "nan or infinite"),
    "infinite": (change(lambda x: np.full_like(x, -np.inf)), "not-finite", "nan or infinite"),
    "absurd norm": (change(lambda x: x + 1e9), "norm", "above"),
    "norm that overflows": (change(lambda x: x + 1e30), "norm", "an update of norm inf, above"),
    "other shape": (change(lambda x: x[:-1]), "tensors", "has shape"),
    "other type": (change(lambda x: x.astype(np.float64)), "tensors", "has type torch.float64"),
    "other name": (rename, "tensors", "other arrays than the model's"),
    "pickled": (pickled, "malformed", "cannot be read"),
    "archive": (archive, "malformed", "cannot be read"),
    "truncated": (truncated, "malformed", "cannot be read"),
    "boasting": (boasting, "malformed", "cannot be read"),
    "wrong round": (put("metrics", "server-round", 77), "round", "a reply to round 77"),
    "no arrays": (drop("arrays"), "malformed", "'arrays' is missing"),
    "no metrics": (drop("metrics"), "malformed", "malformed"),
    "no clients": (drop("clients"), "malformed", "malformed"),
    "no failures": (drop("failures"), "malformed", "malformed"),
    "no records": (empty, "malformed", "malformed"),
    "strangers": (strangers, "malformed", "was not asked to train"),
    "uneven columns": (put("clients", "weight", [1.0, 1.0]), "malformed", "malformed"),
    "endless steps": (every("steps", math.inf), "malformed", "malformed"),
    "negative seconds": (every("seconds", -1.0), "malformed", "seconds -1.0"),
    "negative weight": (every("weight", -1.0), "weight", "weight -1.0"),
    "nan weight": (every("weight", float("nan")), "weight", "weight nan"),
    "absurd weight": (every("weight", 1e12), "weight", "but holds"),
    "one example more": (heavier, "weight", "but holds"),
}
