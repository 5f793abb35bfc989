# SPDX-License-Identifier: Apache-2.0
"""resource.k8s.io: ResourceSlice, DeviceClass, ResourceClaim, ResourceClaimTemplate.

Objects are stored in the form of v1 and converted on the way in and out. Rules follow
pkg/apis/resource/validation and pkg/registry/resource of k8s.io/kubernetes 1.36.
"""
