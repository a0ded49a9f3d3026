//! The alerts of `deploy/monitoring/`, as Prometheus itself reads and evaluates them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::ensure;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/monitoring")
}

fn promtool(args: &[&str]) -> anyhow::Result<()> {
    // `cargo xtask test` unpacks the tool there, unless it is in PATH.
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin/promtool");
    let program = if unpacked.is_file() { unpacked } else { "promtool".into() };
    let output = Command::new(program).args(args).current_dir(folder()).output()?;
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.contains("SUCCESS"), "promtool {args:?}:\n{said}");
    Ok(())
}

#[test]
fn prometheus_accepts_the_alerts() {
    promtool(&["check", "rules", "rules.yaml"]).unwrap();
}

#[test]
fn alerts_fire_for_trouble_and_for_nothing_else() {
    promtool(&["test", "rules", "rules-test.yaml"]).unwrap();
}

#[test]
fn every_alert_has_a_test_in_which_it_fires() {
    let read = |name: &str| std::fs::read_to_string(folder().join(name)).unwrap();
    let (rules, tests) = (read("rules.yaml"), read("rules-test.yaml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|it| it.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} fires in no test");
    }
}
