"""Names that markup, a terminal, a typesetter or a shell would obey."""

import os

NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "[/b]",
    "[red]rose[/red]",
    "photo[final]",
    "one|two|",
    "line\nbreak\r\n# heading",
    "\x1b[2J\x1b]0;title\x07",
    "\u202egnp.exe",
    "$\\frac{1}{2$",
    "**a** _b_ `c` ``d` [e](http://f.g) ![h](i.png) ~~j~~ &lt; <!-- \\",
    "'; touch owned; $(touch owned) `touch owned`",
    os.fsdecode(b"caf\xe9"),
)
