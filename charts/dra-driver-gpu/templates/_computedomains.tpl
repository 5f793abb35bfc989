{{- /* SPDX-License-Identifier: Apache-2.0
ComputeDomains: whether this release serves them on its nodes, manages them, and runs IMEX daemons for them. */ -}}

{{- /* "true" where the driver on a node publishes and prepares channels */ -}}
{{- define "dra-driver-gpu.computeDomains" -}}
{{- if .Values.resources.computeDomains.enabled }}true{{ end -}}
{{- end -}}

{{- define "dra-driver-gpu.imexMode" -}}
{{- default "driverManaged" (.Values.resources.computeDomains.imex).mode -}}
{{- end -}}

{{- /* "true" where the release's cluster controller manages domains. Only one release of a cluster may do so. */ -}}
{{- define "dra-driver-gpu.managesDomains" -}}
{{- if and (include "dra-driver-gpu.computeDomains" .) .Values.controller.enabled }}true{{ end -}}
{{- end -}}

{{- /* "true" where it also runs the IMEX daemons */ -}}
{{- define "dra-driver-gpu.runsDaemons" -}}
{{- if and (include "dra-driver-gpu.managesDomains" .) (eq (include "dra-driver-gpu.imexMode" .) "driverManaged") }}true{{ end -}}
{{- end -}}

{{- /* As in NVIDIA's chart. DaemonSets of domains belong to this account, so they are deleted together with it. */ -}}
{{- define "dra-driver-gpu.daemonAccount" -}}compute-domain-daemon-service-account{{- end -}}

{{- /* Where the plugin keeps its records of ComputeDomains. */ -}}
{{- define "dra-driver-gpu.domainsFolder" -}}
{{- printf "%s/compute-domain.nvidia.com" .Values.kubeletPlugin.kubeletPluginsDirectoryPath -}}
{{- end -}}

{{- /* KIND/NAME of the issuer of the daemons' certificates */ -}}
{{- define "dra-driver-gpu.imexIssuer" -}}
{{- with (.Values.resources.computeDomains.imex).tls -}}
{{- if .issuerName -}}
{{- printf "%s/%s" (ternary "ClusterIssuer" "Issuer" (eq (default "issuer" .issuerType) "clusterissuer")) .issuerName -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Variables of dra-cluster-controller. */ -}}
{{- define "dra-driver-gpu.domainControllerEnv" -}}
{{- $domains := .Values.resources.computeDomains -}}
{{- $daemon := default dict $domains.daemon -}}
- {name: COMPUTE_DOMAINS, value: "true"}
- {name: IMEX_MODE, value: {{ include "dra-driver-gpu.imexMode" . }}}
{{- if include "dra-driver-gpu.runsDaemons" . }}
- {name: DAEMON_IMAGE, value: {{ include "dra-driver-gpu.image" . | quote }}}
- {name: DAEMON_PULL_POLICY, value: {{ .Values.image.pullPolicy | quote }}}
{{- with .Values.imagePullSecrets }}
{{- $names := list }}{{ range . }}{{ $names = append $names .name }}{{ end }}
- {name: DAEMON_PULL_SECRET, value: {{ join " " $names | quote }}}
{{- end }}
- {name: DAEMON_SERVICE_ACCOUNT, value: {{ include "dra-driver-gpu.daemonAccount" . }}}
{{- with $daemon.priorityClassName }}
- {name: DAEMON_PRIORITY_CLASS, value: {{ . | quote }}}
{{- end }}
- {name: DAEMON_RESOURCES, value: {{ default dict $daemon.resources | toJson | quote }}}
- {name: DAEMON_LOG_LEVEL, value: {{ default (default 0 .Values.logVerbosity | toString) (dig "logVerbosity" "" $daemon | toString) | quote }}}
- {name: MAX_NODES_PER_IMEX_DOMAIN, value: {{ default 18 ($domains.imex).maxNodes | toString | quote }}}
- {name: DAEMON_NETWORK_POLICY, value: {{ dig "networkPolicy" "enabled" true $daemon | quote }}}
{{- with include "dra-driver-gpu.imexIssuer" . }}
- {name: IMEX_TLS_ISSUER, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The DRA drivers of the release, as a list of CEL. */ -}}
{{- define "dra-driver-gpu.drivers" -}}
{{- if include "dra-driver-gpu.computeDomains" . }}['gpu.nvidia.com', 'compute-domain.nvidia.com']{{ else }}['gpu.nvidia.com']{{ end -}}
{{- end -}}
