# SPDX-License-Identifier: Apache-2.0
"""Property tests here may take their time: what they check is never speed."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
