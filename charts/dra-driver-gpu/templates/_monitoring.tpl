{{- /* SPDX-License-Identifier: Apache-2.0
Who asks the pods for metrics, and where they have them. */ -}}

{{- /* (root, kind, create): "true" when monitors of this kind are to be made */ -}}
{{- define "dra-driver-gpu.wantsMonitors" -}}
{{- $served := (index . 0).Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" (index . 1)) -}}
{{- if or (eq (index . 2) "always") (and (eq (index . 2) "auto") $served) }}true{{ end -}}
{{- end -}}

{{- define "dra-driver-gpu.serviceMonitors" -}}
{{- include "dra-driver-gpu.wantsMonitors" (list . "ServiceMonitor" (default "never" (.Values.serviceMonitor).create)) -}}
{{- end -}}

{{- /* A Prometheus that selects both kinds would ask every pod twice. */ -}}
{{- define "dra-driver-gpu.podMonitors" -}}
{{- $create := default "auto" (.Values.podMonitor).create -}}
{{- if not (and (eq $create "auto") (include "dra-driver-gpu.serviceMonitors" .)) -}}
{{- include "dra-driver-gpu.wantsMonitors" (list . "PodMonitor" $create) -}}
{{- end -}}
{{- end -}}

{{- /* YAML: component -> path, and ports by name. */ -}}
{{- define "dra-driver-gpu.scraped" -}}
{{- $found := dict -}}
{{- with .Values.kubeletPlugin.metrics -}}
{{- if and .enabled (not ($.Values.cleanup).enabled) -}}
{{- $ports := dict "http-plugin" (include "dra-driver-gpu.port" (list .gpuHttpEndpoint)) "http-controller" (include "dra-driver-gpu.port" (list .controllerHttpEndpoint)) -}}
{{- $_ := set $found "kubeletplugin" (dict "path" .metricsPath "ports" $ports) -}}
{{- end -}}
{{- end -}}
{{- with .Values.controller -}}
{{- if and .enabled .metrics.enabled -}}
{{- $_ := set $found "controller" (dict "path" .metrics.metricsPath "ports" (dict "http" (include "dra-driver-gpu.port" (list .metrics.httpEndpoint)))) -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- /* (root, component, values of the monitor, kind, name of its list of endpoints) */ -}}
{{- define "dra-driver-gpu.monitor" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := default dict (index . 2) -}}
{{- $scraped := get (include "dra-driver-gpu.scraped" $root | fromYaml) $component -}}
apiVersion: monitoring.coreos.com/v1
kind: {{ index . 3 }}
metadata:
  {{- include "dra-driver-gpu.metadata" (list $root $component) | nindent 2 }}
    {{- with $values.labels }}{{- toYaml . | nindent 4 }}{{- end }}
spec:
  selector:
    matchLabels: {{- include "dra-driver-gpu.selectorLabels" (list $root $component) | nindent 6 }}
  {{ index . 4 }}:
  {{- range $name, $_ := $scraped.ports }}
  - port: {{ $name }}
    path: {{ $scraped.path | quote }}
    {{- with $values.interval }}
    interval: {{ . | quote }}
    {{- end }}
  {{- end }}
{{- end -}}
