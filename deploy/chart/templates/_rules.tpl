{{/* Alerts, as Prometheus reads them. Between the backquotes, braces are Prometheus' templates, not helm's. Each
annotation `runbook` names a section of docs/runbooks.md. */}}
{{- define "ferrule.rules" -}}
{{`groups:
  - name: ferrule
    rules:
      - alert: FerruleAgentDown
        expr: up{job="ferrule-agent"} == 0
        for: 5m
        labels: { severity: critical }
        annotations:
          summary: The agent on {{ $labels.instance }} does not answer. Pods keep their network; new ones wait.
          runbook: docs/runbooks.md#ferruleagentdown
      - alert: FerruleNoAgents
        expr: absent(up{job="ferrule-agent"})
        for: 15m
        labels: { severity: critical }
        annotations:
          summary: Prometheus knows no agent, so that no other alert of Ferrule can fire.
          runbook: docs/runbooks.md#ferrulenoagents
      - alert: FerruleAgentsMissing
        expr: kube_daemonset_status_number_unavailable{daemonset="ferrule-agent"} > 0
        for: 15m
        labels: { severity: warning }
        annotations:
          summary: "{{ $value }} nodes lack an agent that is available; new pods there wait."
          runbook: docs/runbooks.md#ferruleagentsmissing
      - alert: FerruleNotReady
        expr: ferrule_ready == 0
        for: 5m
        labels: { severity: critical }
        annotations:
          summary: New pods on {{ $labels.instance }} get no network.
          runbook: docs/runbooks.md#ferrulenotready
      - alert: FerrulePodsCutOff
        expr: ferrule_component_healthy{affects="all-pods"} == 0 unless ferrule_component_starting == 1
        for: 2m
        labels: { severity: critical }
        annotations:
          summary: Pods on {{ $labels.instance }} may lack connectivity, by component {{ $labels.component }}.
          runbook: docs/runbooks.md#ferrulepodscutoff
      - alert: FerruleComponentUnhealthy
        expr: ferrule_component_healthy{affects="nothing"} == 0 unless ferrule_component_starting == 1
        for: 15m
        labels: { severity: warning }
        annotations:
          summary: Component {{ $labels.component }} on {{ $labels.instance }} is not healthy.
          runbook: docs/runbooks.md#ferrulecomponentunhealthy
      - alert: FerruleAddressesScarce
        expr: |
          ferrule_ipam_addresses{state="free"}
            < ignoring(state) (0.1 * sum without(state) (ferrule_ipam_addresses))
        for: 10m
        labels: { severity: warning }
        annotations:
          summary: "{{ $value }} {{ $labels.family }} addresses are free on {{ $labels.instance }}."
          runbook: docs/runbooks.md#ferruleaddressesscarce
      - alert: FerruleAddressesOutside
        expr: ferrule_ipam_outside > 0
        for: 30m
        labels: { severity: warning }
        annotations:
          summary: "{{ $value }} pods on {{ $labels.instance }} have addresses that another node may get."
          runbook: docs/runbooks.md#ferruleaddressesoutside
      - alert: FerruleRegistryRebuilt
        expr: ferrule_registry_rebuilds_total > 0 or ferrule_registry_start_failures_total > 0
        labels: { severity: warning }
        annotations:
          summary: The agent on {{ $labels.instance }} lost its registry, or skipped parts of it at its start.
          runbook: docs/runbooks.md#ferruleregistryrebuilt
      - alert: FerruleCallsFail
        expr: |
          sum by (instance, verb) (
              rate(ferrule_cni_duration_seconds_count{phase="total",code!="0",verb=~"ADD|DEL|CHECK"}[10m])
            )
            > 0.2 * sum by (instance, verb) (
              rate(ferrule_cni_duration_seconds_count{phase="total",verb=~"ADD|DEL|CHECK"}[10m])
            )
        for: 10m
        labels: { severity: warning }
        annotations:
          summary: More than a fifth of the calls {{ $labels.verb }} fail on {{ $labels.instance }}.
          runbook: docs/runbooks.md#ferrulecallsfail
      - alert: FerruleWatchStale
        expr: time() - ferrule_watch_current_timestamp_seconds > 600
        for: 5m
        labels: { severity: warning }
        annotations:
          summary: The agent on {{ $labels.instance }} has not heard of {{ $labels.source }} for ten minutes.
          runbook: docs/runbooks.md#ferrulewatchstale
      - alert: FerruleWatchRefused
        expr: increase(ferrule_watch_failures_total{reason=~"unauthorized|forbidden"}[10m]) > 0
        for: 5m
        labels: { severity: warning }
        annotations:
          summary: The API server refuses {{ $labels.source }} to the agent on {{ $labels.instance }}.
          runbook: docs/runbooks.md#ferrulewatchrefused
      - alert: FerruleRelists
        expr: increase(ferrule_watch_lists_total[15m]) > 5
        for: 15m
        labels: { severity: warning }
        annotations:
          summary: The agent on {{ $labels.instance }} lists all {{ $labels.source }} again and again.
          runbook: docs/runbooks.md#ferrulerelists
      - alert: FerruleMapFilling
        expr: ferrule_map_entries / ferrule_map_capacity > 0.9
        for: 10m
        labels: { severity: warning }
        annotations:
          summary: "The map {{ $labels.map }} on {{ $labels.instance }} is {{ $value | humanizePercentage }} full."
          runbook: docs/runbooks.md#ferrulemapfilling
      - alert: FerrulePolicyHeld
        expr: ferrule_policy_held > 0
        for: 2m
        labels: { severity: critical }
        annotations:
          summary: "{{ $value }} changes of policies are not in force on {{ $labels.instance }}, for want of room in {{ $labels.map }}."
          runbook: docs/runbooks.md#ferrulepolicyheld
      - alert: FerruleNodeRefused
        expr: ferrule_node_refused > 0
        for: 5m
        labels: { severity: warning }
        annotations:
          summary: "{{ $value }} ranges or addresses of nodes are refused on {{ $labels.instance }}."
          runbook: docs/runbooks.md#ferrulenoderefused
      - alert: FerruleRepairsFail
        expr: increase(ferrule_repairs_total{outcome="failed"}[10m]) > 5
        for: 5m
        labels: { severity: warning }
        annotations:
          summary: Deviations of the kind {{ $labels.kind }} on {{ $labels.instance }} cannot be repaired.
          runbook: docs/runbooks.md#ferrulerepairsfail
      - alert: FerruleOrphansStay
        expr: increase(ferrule_reconcile_given_up_total[1h]) > 0
        labels: { severity: warning }
        annotations:
          summary: The agent on {{ $labels.instance }} could not remove an orphan, which keeps its address.
          runbook: docs/runbooks.md#ferruleorphansstay
      - alert: FerruleOverridden
        expr: ferrule_install_overridden > 0
        for: 5m
        labels: { severity: critical }
        annotations:
          summary: New pods on {{ $labels.instance }} get the network of another plugin.
          runbook: docs/runbooks.md#ferruleoverridden`}}
{{- end -}}
