# SPDX-License-Identifier: Apache-2.0
"""The command dra-sandbox, whose processes come from `preloaded`: `python -m tests.support.sandboxcommand up ...`.

A process of such a sandbox that is killed does not leave its processes to end by themselves: they are killed as well.
"""

from dra_driver.sandbox.main import main

from .preloaded import children

if __name__ == "__main__":
    main(children=children)
