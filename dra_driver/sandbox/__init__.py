# SPDX-License-Identifier: Apache-2.0
"""What lets all of the driver run on a laptop: an API server, a kubelet and a scheduler that stand in for real ones."""
