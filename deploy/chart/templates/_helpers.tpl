{{/* The reference of the image. */}}
{{- define "ferrule.image" -}}
{{- $image := .Values.image -}}
{{- $image.repository -}}
{{- if $image.tag -}}:{{ $image.tag }}{{- else if not $image.digest -}}:{{ .Chart.AppVersion }}{{- end -}}
{{- with $image.digest -}}@{{ . }}{{- end -}}
{{- end -}}

{{/* The only user who may write VIF annotations. */}}
{{- define "ferrule.vifController" -}}
{{- default (printf "system:serviceaccount:%s:vif-controller" .Release.Namespace) .Values.vifController -}}
{{- end -}}

{{/* What a container of the agent needs, whether it runs or removes the agent. */}}
{{- define "ferrule.container" -}}
image: {{ include "ferrule.image" . | toJson }}
imagePullPolicy: {{ toJson .Values.image.pullPolicy }}
env:
  - name: FERRULE_NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  - name: FERRULE_CNI_BIN_DIR
    value: {{ printf "/host%s" .Values.node.cniBinDir | toJson }}
  - name: FERRULE_CNI_CONF_DIR
    value: {{ printf "/host%s" .Values.node.cniConfDir | toJson }}
  - name: FERRULE_SOCKET
    value: {{ printf "%s/agent.sock" .Values.node.stateDir | toJson }}
  - name: FERRULE_STATE_DIR
    value: {{ toJson .Values.node.stateDir }}
  - name: FERRULE_HTTP
    value: {{ printf "%s:%s" .Values.http.host (toJson .Values.http.port) | toJson }}
  {{- if .Values.metrics.host }}
  - name: FERRULE_METRICS_LISTEN
    value: {{ printf "%s:%s" .Values.metrics.host (toJson .Values.metrics.port) | toJson }}
  {{- if .Values.metrics.certificateSecret }}
  - name: FERRULE_METRICS_CERT
    value: /etc/ferrule-metrics/tls.crt
  - name: FERRULE_METRICS_KEY
    value: /etc/ferrule-metrics/tls.key
  {{- end }}
  {{- end }}
  # The key `config` of a ConfigMap `ip-masq-agent` in this namespace, if there is one.
  - name: FERRULE_IP_MASQ_AGENT_CONFIG
    value: /etc/ip-masq-agent/config
  {{- if .Values.apiServer.host }}
  - name: KUBERNETES_SERVICE_HOST
    value: {{ toJson .Values.apiServer.host }}
  - name: KUBERNETES_SERVICE_PORT
    value: {{ toJson .Values.apiServer.port | toJson }}
  {{- end }}
securityContext:
  privileged: false
  # `allowPrivilegeEscalation: false` is invalid with SYS_ADMIN. The image has no setuid files.
  runAsUser: 0
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
    add:
      # Write to directories of the node that do not belong to root: /opt/cni/bin often belongs to
      # the user who packed the plugins.
      - DAC_OVERRIDE
      # Configure links, addresses, routes, neighbours and filters of the node and the pods; write
      # below /proc/sys/net; load tc programs.
      - NET_ADMIN
      # Enter a pod's network namespace (setns), for which no lesser capability exists. Includes BPF
      # and PERFMON.
      - SYS_ADMIN
  # Allows bpf and setns with SYS_ADMIN.
  seccompProfile:
    type: RuntimeDefault
  appArmorProfile: {{ toJson .Values.appArmorProfile }}
  {{- with .Values.seLinuxOptions }}
  seLinuxOptions: {{ toJson . }}
  {{- end }}
volumeMounts:
  - name: config
    mountPath: /etc/ferrule
    readOnly: true
  - name: ip-masq-agent
    mountPath: /etc/ip-masq-agent
    readOnly: true
  {{- if .Values.metrics.certificateSecret }}
  - name: metrics-certificate
    mountPath: /etc/ferrule-metrics
    readOnly: true
  {{- end }}
  # The agent's socket and its durable stores.
  - name: run
    mountPath: {{ toJson .Values.node.stateDir }}
  # The pinned maps.
  - name: bpf
    mountPath: /sys/fs/bpf
    mountPropagation: HostToContainer
  # Pods' network namespaces. Propagation shows later mounts and lets the runtime unmount them.
  - name: netns
    mountPath: {{ toJson .Values.node.netnsDir }}
    mountPropagation: HostToContainer
  # /proc/sys is read-only in a container, and runtimes refuse mounts below /proc.
  - name: sysctl
    mountPath: /host/proc/sys/net
  # Where the agent installs the shim and the network configuration.
  - name: cni-bin
    mountPath: {{ printf "/host%s" .Values.node.cniBinDir | toJson }}
  - name: cni-conf
    mountPath: {{ printf "/host%s" .Values.node.cniConfDir | toJson }}
{{- end -}}
