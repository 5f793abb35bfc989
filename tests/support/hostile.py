# SPDX-License-Identifier: Apache-2.0
"""Texts that nothing can be made of, and that must cost whoever reads them one line."""

from typing import Final

HOSTILE: Final[dict[str, bytes]] = {
    "sequences in each other": b"[" * 30_000 + b"]" * 30_000,
    "open sequences": b"[" * 30_000,
    "blocks in each other": b"- " * 30_000 + b"a",
    "mappings in each other": b"{a: " * 20_000 + b"1" + b"}" * 20_000,
    "JSON objects in each other": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "no whole number": b"x: !!int foo",
    "no number": b"x: !!float ''",
    "no boolean": b"x: !!bool foo",
    "infinite": b"x: -.inf",
    "JSON, but not a number": b'{"x": NaN}',
    "long number": b"x: " + b"9" * 5_000,
    "long hexadecimal number": b"x: 0x" + b"f" * 5_000,
    "long JSON number": b'{"x": ' + b"9" * 5_000 + b"}",
    "bytes": b"x: !!binary aGVsbG8=",
    "a set": b"!!set {a, b}",
    "a tag of Python": b"x: !!python/object/apply:os.system [ls]",
    "a key twice": b"x: 1\nx: 2",
    "a JSON key twice": b'{"x": 1, "x": 2}',
    "a key that is a list": b"? [a]\n: b",
    "no mapping, says its tag": b"x: !!map foo",
    "contains itself": b"x: &x [*x]",
    "merges itself": b"x: &x {<<: *x}",
    "aliases of aliases": b"a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    + b"".join(
        b"%c: &%c [%s]\n" % (after, after, b", ".join([b"*%c" % before] * 9))
        for before, after in zip(b"abcdefgh", b"bcdefghi", strict=True)
    ),
    "an alias of nothing": b"x: *y",
    "a control character": b"x: \x01",
    "not UTF-8": b"x: \xff\xfe\x00",
    "not UTF-16": b"\xff\xfea",
    "a template": b"x: {{ value }}",
    "unfinished": b"x: [",
}
