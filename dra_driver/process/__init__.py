# SPDX-License-Identifier: Apache-2.0
"""What every process needs: flags, logs and errors of a command (`command`, `streams`, `errors`), files and input from
users (`files`, `parsing`), external programs (`programs`), endpoints for Kubernetes' probes and metrics (`endpoints`),
pauses between retries (`backoff`), unexpected errors (`containment`), the time of the last boot (`boot`), and memory
after the start (`resident`).
"""
