{{- /* SPDX-License-Identifier: Apache-2.0
The policy file, from `policy` and from names of NVIDIA's chart that mean a part of it. What those say is for all GPUs
and comes first, so that `policy` can say otherwise. */ -}}
{{- define "dra-driver-gpu.policy" -}}
{{- $gates := default dict .Values.featureGates -}}
{{- $general := dict -}}
{{- if kindIs "bool" $gates.DynamicMIG -}}{{- $_ := set $general "mig" (ternary "dynamic" "static" $gates.DynamicMIG) -}}{{- end -}}
{{- if eq (dig "NVMLDeviceHealthCheck" true $gates) false -}}{{- $_ := set $general "health" false -}}{{- end -}}
{{- with default "" .Values.consumableShares | toString -}}
{{- if regexMatch "^[0-9]+$" . -}}
{{- $_ := set $general "shares" (int .) -}}
{{- else -}}
{{- $_ := set $general "shares" . -}}
{{- end -}}
{{- end -}}
{{- $policy := deepCopy (default dict .Values.policy) -}}
{{- if $general -}}{{- $_ := set $policy "gpus" (prepend (default list $policy.gpus) $general) -}}{{- end -}}
{{- if $gates.DRAListTypeAttributes -}}{{- $_ := set $policy "listTypeAttributes" true -}}{{- end -}}
{{- with include "dra-driver-gpu.ignoredXIDs" . | fromYamlArray -}}
{{- $health := default dict $policy.health -}}
{{- $_ := set $health "applicationXIDs" (concat . (default list $health.applicationXIDs) | uniq) -}}
{{- $_ := set $policy "health" $health -}}
{{- end -}}
{{- toYaml $policy -}}
{{- end -}}

{{- /* YAML: the numbers in a variable of NVIDIA's containers, which both of ours have to know. */ -}}
{{- define "dra-driver-gpu.ignoredXIDs" -}}
{{- $found := list -}}
{{- range $container := list "controller" "kubeletplugin" -}}
{{- range (get $.Values.kubeletPlugin.containers $container).env -}}
{{- if eq .name "ADDITIONAL_XIDS_TO_IGNORE" -}}
{{- if or (hasKey . "valueFrom") (not (regexMatch "^[0-9, ]*$" (default "" .value))) -}}
{{- fail (printf "kubeletPlugin.containers.%s.env: ADDITIONAL_XIDS_TO_IGNORE must be numbers, separated by commas: the chart puts them into the policy; see policy.health.applicationXIDs" $container) -}}
{{- end -}}
{{- range regexFindAll "[0-9]+" (default "" .value) -1 -}}{{- $found = append $found (int .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- /* (variables of a container): those that the policy does not have */ -}}
{{- define "dra-driver-gpu.moreEnv" -}}
{{- range . -}}
{{- if ne .name "ADDITIONAL_XIDS_TO_IGNORE" }}
{{ toYaml (list .) }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* "true" where a rule wants pods to wait for the plugin, which then has to see all claims. */ -}}
{{- define "dra-driver-gpu.bindingConditions" -}}
{{- range (.Values.policy).gpus -}}{{- if .bindingConditions }}true{{ end -}}{{- end -}}
{{- end -}}

{{- /* "true" where a rule gives GPUs or vGPUs to virtual machines. */ -}}
{{- define "dra-driver-gpu.passthrough" -}}
{{- range (.Values.policy).gpus -}}{{- if or .passthrough .vgpuTypes }}true{{ end -}}{{- end -}}
{{- end -}}

{{- /* "true" where claims can use MPS */ -}}
{{- define "dra-driver-gpu.mps" -}}
{{- if or (.Values.mps).enabled (.Values.featureGates).MPSSupport }}true{{ end -}}
{{- end -}}

{{- define "dra-driver-gpu.deviceMetadata" -}}
{{- if or .Values.kubeletPlugin.deviceMetadata (.Values.featureGates).DeviceMetadata }}true{{ else }}false{{ end -}}
{{- end -}}
