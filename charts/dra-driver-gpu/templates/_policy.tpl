{{- /* SPDX-License-Identifier: Apache-2.0
The policy file, from `policy` and from names of NVIDIA's chart that mean a part of it. What those say is for all GPUs
and comes first, so that `policy` can say otherwise. */ -}}
{{- define "dra-driver-gpu.policy" -}}
{{- $gates := .Values.featureGates -}}
{{- $general := dict -}}
{{- if $gates.DynamicMIG -}}{{- $_ := set $general "mig" "dynamic" -}}{{- end -}}
{{- if eq (dig "NVMLDeviceHealthCheck" true $gates) false -}}{{- $_ := set $general "health" false -}}{{- end -}}
{{- with toString .Values.consumableShares -}}
{{- if regexMatch "^[0-9]+$" . -}}
{{- $_ := set $general "shares" (int .) -}}
{{- else -}}
{{- $_ := set $general "shares" . -}}
{{- end -}}
{{- end -}}
{{- $policy := deepCopy .Values.policy -}}
{{- if $general -}}{{- $_ := set $policy "gpus" (prepend (default list $policy.gpus) $general) -}}{{- end -}}
{{- if $gates.DRAListTypeAttributes -}}{{- $_ := set $policy "listTypeAttributes" true -}}{{- end -}}
{{- toYaml $policy -}}
{{- end -}}

{{- define "dra-driver-gpu.deviceMetadata" -}}
{{- if or .Values.kubeletPlugin.deviceMetadata .Values.featureGates.DeviceMetadata }}true{{ else }}false{{ end -}}
{{- end -}}
