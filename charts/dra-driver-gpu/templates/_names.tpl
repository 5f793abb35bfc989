{{- /* SPDX-License-Identifier: Apache-2.0
Names, labels, and what the cluster is like. */ -}}
{{- /* Services may not have the dots that releases may. */ -}}
{{- define "dra-driver-gpu.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | replace "." "-" | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{- define "dra-driver-gpu.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- /* (root, component) */ -}}
{{- define "dra-driver-gpu.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- /* (root, component) */ -}}
{{- define "dra-driver-gpu.labels" -}}
{{- $root := index . 0 -}}
{{ include "dra-driver-gpu.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- /* (root, suffix) */ -}}
{{- define "dra-driver-gpu.objectName" -}}
{{- include "dra-driver-gpu.fullname" (index . 0) }}-{{ index . 1 -}}
{{- end -}}

{{- /* (root, component): the metadata of an object in the release's namespace. Text that comes from users is quoted here
and everywhere: YAML takes `y`, `on`, `1e3` and `null` for something else than text. */ -}}
{{- define "dra-driver-gpu.metadata" -}}
name: {{ include "dra-driver-gpu.objectName" . | quote }}
namespace: {{ include "dra-driver-gpu.namespace" (index . 0) | quote }}
labels: {{- include "dra-driver-gpu.labels" . | nindent 2 }}
{{- end -}}

{{- /* (root, component): the metadata of an object of the cluster; two releases may have one name */ -}}
{{- define "dra-driver-gpu.clusterMetadata" -}}
name: {{ include "dra-driver-gpu.clusterName" . | quote }}
labels: {{- include "dra-driver-gpu.labels" . | nindent 2 }}
{{- end -}}

{{- define "dra-driver-gpu.clusterName" -}}
{{- $root := index . 0 -}}
{{- include "dra-driver-gpu.fullname" $root }}-{{ index . 1 }}.{{ include "dra-driver-gpu.namespace" $root -}}
{{- end -}}

{{- /* (root, suffix) */ -}}
{{- define "dra-driver-gpu.serviceAccountName" -}}
{{- $root := index . 0 -}}
{{- default (include "dra-driver-gpu.fullname" $root) $root.Values.serviceAccount.name }}-{{ index . 1 -}}
{{- end -}}

{{- define "dra-driver-gpu.webhookServiceAccountName" -}}
{{- default (printf "%s-webhook" (include "dra-driver-gpu.fullname" .)) .Values.webhook.serviceAccount.name -}}
{{- end -}}

{{- define "dra-driver-gpu.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- $repository := .Values.image.repository -}}
{{- with (.Values.global).imageRegistry -}}
{{- $parts := splitList "/" $repository -}}
{{- if and (gt (len $parts) 1) (regexMatch "[.:]|^localhost$" (first $parts)) -}}{{- $parts = rest $parts -}}{{- end -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (join "/" $parts) -}}
{{- end -}}
{{- with .Values.image.digest -}}
{{- printf "%s:%s@%s" $repository $tag . -}}
{{- else -}}
{{- printf "%s:%s" $repository $tag -}}
{{- end -}}
{{- end -}}

{{- /* (root, constraint): "true" when the cluster's Kubernetes fulfils it */ -}}
{{- define "dra-driver-gpu.kubernetes" -}}
{{- if semverCompare (index . 1) (index . 0).Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{- define "dra-driver-gpu.onGKE" -}}
{{- if contains "-gke." .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end -}}

{{- define "dra-driver-gpu.onOpenShift" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1/SecurityContextConstraints" }}true{{ end -}}
{{- end -}}

{{- /* The newest version of resource.k8s.io that the cluster serves. An API server tells versions and their kinds, and so
does --api-versions of Argo CD. `helm template` has the versions that Helm was built with, each once and without kinds,
and after them those of --api-versions. So a version that is there more than once is served. Where nothing tells of the
cluster (not even its Pods), the release does, which --kube-version gives. */ -}}
{{- define "dra-driver-gpu.resourceVersion" -}}
{{- $served := list -}}
{{- $usual := list -}}
{{- $versions := join "\n" .Capabilities.APIVersions -}}
{{- range $known := list (list "v1" ">=1.34-0") (list "v1beta2" ">=1.33-0") (list "v1beta1" ">=1.32-0") -}}
{{- if ge (regexFindAll (printf `(?m)^resource\.k8s\.io/%s(/|$)` (first $known)) $versions -1 | len) 2 -}}{{- $served = append $served (first $known) -}}{{- end -}}
{{- if include "dra-driver-gpu.kubernetes" (list $ (last $known)) -}}{{- $usual = append $usual (first $known) -}}{{- end -}}
{{- end -}}
{{- if and (not $served) (not (.Capabilities.APIVersions.Has "v1/Pod")) -}}{{- $served = $usual -}}{{- end -}}
{{- $found := default (first $served) (default "" .Values.resourceApiVersion | trimPrefix "resource.k8s.io/") -}}
{{- $found | required "the cluster serves no version of resource.k8s.io that this chart knows: v1 is enabled by default from Kubernetes 1.34; for older versions, start kube-apiserver with --feature-gates=DynamicResourceAllocation=true and --runtime-config=resource.k8s.io/v1beta1=true" -}}
{{- end -}}

{{- /* Where the driver is on the host. */ -}}
{{- define "dra-driver-gpu.driverRoot" -}}
{{- if .Values.nvidiaDriverRoot -}}
{{- .Values.nvidiaDriverRoot -}}
{{- else if include "dra-driver-gpu.onGKE" . -}}
/home/kubernetes/bin/nvidia
{{- else if .Capabilities.APIVersions.Has "nvidia.com/v1/ClusterPolicy" -}}
{{- $root := "/" -}}
{{- range (lookup "nvidia.com/v1" "ClusterPolicy" "" "").items -}}
{{- if dig "spec" "driver" "enabled" true . -}}
{{- $root = dig "spec" "hostPaths" "driverInstallDir" "/run/nvidia/driver" . -}}
{{- end -}}
{{- end -}}
{{- $root -}}
{{- else -}}
/
{{- end -}}
{{- end -}}

{{- /* (address): its port */ -}}
{{- define "dra-driver-gpu.port" -}}
{{- regexFind "[0-9]+$" (index . 0) -}}
{{- end -}}
