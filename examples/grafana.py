#!/usr/bin/env python3
"""Writes examples/grafana.json: a Grafana dashboard of what 'rollcall export openmetrics RUN_DIR' serves.

    examples/grafana.py > examples/grafana.json

Import the file in Grafana and choose the Prometheus that scrapes the run. One panel per line below.
"""
import json

PANELS = [    # title, Grafana unit, series (without the prefix rollcall_)
    ("Reward", "none", ["metrics_reward", "metrics_format_acc", "metrics_ans_acc"]),
    ("Response length", "none", ["metrics_response_length_tokens", "metrics_response_length_p90_tokens"]),
    ("Loss", "none", ["train_loss"]),
    ("KL and sampler against trainer", "none", ["train_kl_nats", "train_sampler_trainer_diff_nats"]),
    ("Entropy", "none", ["train_entropy_nats"]),
    ("Gradient norm", "none", ["train_grad_norm"]),
    ("Shares of samples", "percentunit", ["metrics_truncated_ratio", "metrics_filtered_ratio", "metrics_no_spread_ratio",
                                          "metrics_left_out_ratio"]),
    ("Clipped tokens", "percentunit", ["train_clip_low_ratio", "train_clip_high_ratio"]),
    ("Tokens a second", "none", ["perf_rollout_tokens_per_second", "perf_train_tokens_per_second"]),
    ("Where the time goes", "s", ["time_generate_seconds", "time_score_seconds", "time_train_seconds", "time_publish_seconds",
                                  "time_idle_seconds", "time_step_seconds"]),
    ("Age of tokens", "none", ["train_age_mean_steps", "train_age_max_steps"]),
    ("Scoring", "none", ["score_queue", "score_timeouts", "score_errors", "score_latency_milliseconds"]),
    ("Buffer", "none", ["rollout_buffer_depth_groups"]),
    ("Memory of the host", "bytes", ["host_mem_used_bytes", "host_run_mem_bytes"]),
    ("Processors", "percent", ["host_cpu_percent"]),
    ("GPU use", "percent", ["gpu_util_percent"]),
    ("GPU memory", "bytes", ["gpu_mem_used_bytes", "gpu_run_mem_bytes"]),
    ("GPU power", "watt", ["gpu_power_watts", "gpu_power_limit_watts"]),
    ("GPU temperature", "celsius", ["gpu_temp_celsius", "gpu_mem_temp_celsius"]),
    ("GPU clocks, and whether they are held back", "none", ["gpu_sm_clock_mhz", "gpu_slowed"]),
    ("NVLink", "Bps", ["gpu_nvlink_tx_bytes_per_second", "gpu_nvlink_rx_bytes_per_second"]),
    ("GPU errors", "none", ["gpu_ecc_uncorrected", "gpu_nvlink_errors", "gpu_lost"]),
    ("Steps and whether the run is up", "none", ["optimizer_steps", "up"]),
]
SOURCE = {"type": "prometheus", "uid": "${source}"}


def panel(i, title, unit, series):
    targets = [{"refId": chr(65 + n), "datasource": SOURCE, "expr": f'rollcall_{name}{{instance=~"$instance"}}',
                "legendFormat": f"{name} {{{{instance}}}}" + (" {{node}} {{gpu}}" if name.startswith(("host_", "gpu_")) else "")} for n, name in enumerate(series)]
    return {"id": i + 1, "type": "timeseries", "title": title, "datasource": SOURCE, "targets": targets,
            "gridPos": {"x": i % 3 * 8, "y": i // 3 * 8, "w": 8, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit, "custom": {"showPoints": "never"}}, "overrides": []}}


dashboard = {
    "title": "rollcall", "uid": "rollcall", "tags": ["rollcall"], "schemaVersion": 39, "version": 1, "editable": True,
    "refresh": "10s", "time": {"from": "now-3h", "to": "now"},
    "templating": {"list": [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        {"name": "instance", "label": "run", "type": "query", "datasource": SOURCE, "multi": True, "includeAll": True,
         "query": {"query": "label_values(rollcall_up, instance)", "refId": "instances"}, "refresh": 2}]},
    "panels": [panel(i, *p) for i, p in enumerate(PANELS)],
}
print(json.dumps(dashboard, indent=1))
