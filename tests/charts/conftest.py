# SPDX-License-Identifier: Apache-2.0
"""Helm's engine is a library with wheels for x86-64 only; without it nothing here is collected."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("helm_python") else ["test_*.py"]
