{{- /* SPDX-License-Identifier: Apache-2.0
What the pods have in common. */ -}}

{{- /* (root, values of the workload): scheduling, where the chart adds nothing of its own */ -}}
{{- define "dra-driver-gpu.scheduling" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
nodeSelector: {{- toYaml (merge (dict) (default dict $values.nodeSelector) (dict "kubernetes.io/os" "linux")) | nindent 2 }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- /* (root, component, affinity of the values): the component's pods would rather not share a node */ -}}
{{- define "dra-driver-gpu.apart" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (include "dra-driver-gpu.selectorLabels" (list (index . 0) (index . 1)) | fromYaml)) -}}
{{- $apart := dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term))) -}}
{{- toYaml (mergeOverwrite $apart (default dict (index . 2))) -}}
{{- end -}}

{{- /* (root, security context of the values) */ -}}
{{- define "dra-driver-gpu.plainPod" -}}
{{- toYaml (mergeOverwrite (include "dra-driver-gpu.plainPodSecurity" (index . 0) | fromYaml) (default dict (index . 1))) -}}
{{- end -}}

{{- /* (root): pods that are nobody's business but the API server's. On OpenShift the namespace has a range of user IDs,
which an ID of ours would be outside of. */ -}}
{{- define "dra-driver-gpu.plainPodSecurity" -}}
runAsNonRoot: true
{{- if not (include "dra-driver-gpu.onOpenShift" .) }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "dra-driver-gpu.plainSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* (port name, scheme): a process that needs longer to start is not ended for it */ -}}
{{- define "dra-driver-gpu.probes" -}}
{{- $port := index . 0 -}}
{{- $scheme := index . 1 -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- define "dra-driver-gpu.loggingEnv" -}}
- {name: LOG_VERBOSITY, value: {{ default 0 .Values.logVerbosity | toString | quote }}}
- {name: LOG_FORMAT, value: {{ default "text" .Values.logFormat | quote }}}
{{- end -}}
