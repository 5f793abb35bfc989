{{- /* SPDX-License-Identifier: Apache-2.0
What pods on GPU nodes have in common: the DaemonSet of the driver, and the one that cleans up after it. */ -}}

{{- /* Which process is told what, beside what both are told. */ -}}
{{- define "dra-driver-gpu.nodeEnv" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- {name: NVIDIA_VISIBLE_DEVICES, value: void} # NVIDIA's container runtime, where it is the default, adds nothing
{{- if .Values.simulatedNode }}
- {name: SIMULATED_NODE, value: {{ .Values.simulatedNode | quote }}}
- {name: SIMULATED_ROOT, value: {{ printf "%s/gpu.nvidia.com/simulated" .Values.kubeletPlugin.kubeletPluginsDirectoryPath | quote }}}
{{- else }}
- {name: NVIDIA_DRIVER_ROOT, value: {{ include "dra-driver-gpu.driverRoot" . | quote }}}
{{- with .Values.nvidiaLibraryFolders }}
- {name: NVIDIA_LIBRARY_FOLDERS, value: {{ join ":" . | quote }}}
{{- end }}
{{- end }}
- {name: KUBELET_PLUGINS_DIRECTORY_PATH, value: {{ .Values.kubeletPlugin.kubeletPluginsDirectoryPath | quote }}}
{{- end }}
{{- define "dra-driver-gpu.kubeletEnv" -}}
- {name: KUBELET_REGISTRAR_DIRECTORY_PATH, value: {{ .Values.kubeletPlugin.kubeletRegistrarDirectoryPath | quote }}}
- {name: CDI_ROOT, value: {{ .Values.kubeletPlugin.cdiRoot | quote }}}
{{- end }}
{{- /* NVML opens /dev/nvidia*. A container's device cgroup lets it do so only when the container is privileged or its
runtime was told of the devices, which nobody can do before this driver runs; capabilities and mounts do not
change that. Simulated hardware needs device nodes to be made and no more. */ -}}
{{- define "dra-driver-gpu.nodeSecurity" -}}
{{- $root := index . 0 -}}
{{- if index . 1 -}}
{{- toYaml (index . 1) -}}
{{- else if $root.Values.simulatedNode -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL], add: [MKNOD]}
{{- else -}}
privileged: true
readOnlyRootFilesystem: true
{{- end -}}
{{- end -}}

{{- /* Root owns the folders that kubelet and the container runtime share with plugins. */ -}}
{{- define "dra-driver-gpu.nodePodSecurity" -}}
{{- $context := dict "runAsUser" 0 "runAsGroup" 0 "runAsNonRoot" false "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $context (default dict .Values.kubeletPlugin.podSecurityContext)) -}}
{{- end -}}

{{- define "dra-driver-gpu.nodeScheduling" -}}
{{- $values := .Values.kubeletPlugin -}}
{{- with $values.startupTaint }}
{{- $values = merge (dict "tolerations" (append (default list $values.tolerations) (dict "key" . "operator" "Exists"))) $values }}
{{- end }}
{{- include "dra-driver-gpu.scheduling" (list . $values) | trim }}
{{- if not .Values.simulatedNode }}
{{- with .Values.kubeletPlugin.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* (root, folder): everything on the node that the driver reads and writes; `folder` is its own, or one above it. */ -}}
{{- define "dra-driver-gpu.nodeMounts" -}}
{{- $values := (index . 0).Values -}}
{{- if not $values.simulatedNode -}}
- {name: driver-root, mountPath: /driver-root, readOnly: true, mountPropagation: HostToContainer}
{{ end -}}
- {name: plugins-registry, mountPath: {{ $values.kubeletPlugin.kubeletRegistrarDirectoryPath | quote }}}
- {name: data, mountPath: {{ index . 1 | quote }}}
{{ if and (include "dra-driver-gpu.computeDomains" (index . 0)) (ne (index . 1) $values.kubeletPlugin.kubeletPluginsDirectoryPath) -}}
- {name: compute-domains, mountPath: {{ include "dra-driver-gpu.domainsFolder" (index . 0) | quote }}}
{{ end -}}
- {name: cdi, mountPath: {{ $values.kubeletPlugin.cdiRoot | quote }}}
{{- end -}}

{{- /* (root, folder) */ -}}
{{- define "dra-driver-gpu.nodeVolumes" -}}
{{- $values := (index . 0).Values -}}
{{- if not $values.simulatedNode -}}
- {name: driver-root, hostPath: {path: {{ include "dra-driver-gpu.driverRoot" (index . 0) | quote }}, type: DirectoryOrCreate}}
{{ end -}}
- {name: plugins-registry, hostPath: {path: {{ $values.kubeletPlugin.kubeletRegistrarDirectoryPath | quote }}, type: Directory}}
- {name: data, hostPath: {path: {{ index . 1 | quote }}, type: DirectoryOrCreate}}
{{ if and (include "dra-driver-gpu.computeDomains" (index . 0)) (ne (index . 1) $values.kubeletPlugin.kubeletPluginsDirectoryPath) -}}
- {name: compute-domains, hostPath: {path: {{ include "dra-driver-gpu.domainsFolder" (index . 0) | quote }}, type: DirectoryOrCreate}}
{{ end -}}
- {name: cdi, hostPath: {path: {{ $values.kubeletPlugin.cdiRoot | quote }}, type: DirectoryOrCreate}}
{{- end -}}
