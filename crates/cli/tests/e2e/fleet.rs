//! The files of `deploy/` for fleets, tested with the real Prometheus.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lowtide_testing::Running;
use serde_json::Value;

use crate::exporter::Exporter;
use crate::support::{free_port, lowtide, until};
use crate::top::Named;

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(path).canonicalize().unwrap()
}

fn promtool(words: &[&str]) -> String {
    let done = Command::new("promtool")
        .args(words)
        .current_dir(deploy("prometheus"))
        .output()
        .expect("promtool (Debian: prometheus)");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    assert!(done.status.success(), "{words:?}: {text}");
    text
}

/// A Prometheus that runs until it is dropped.
struct Prometheus {
    _child: Running,
    port: u16,
    _home: tempfile::TempDir,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes addresses every second, with the rules of `deploy/` at this
    /// interval.
    fn start(targets: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let rules = fs::read_to_string(deploy("prometheus/lowtide.rules.yml")).unwrap();
        let rules = rules.replace("interval: 2m", "interval: 1s");
        fs::write(home.path().join("rules.yml"), rules).unwrap();
        let config = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [rules.yml]\n\
             scrape_configs:\n  - job_name: lowtide\n    static_configs:\n      - targets: {targets:?}\n"
        );
        fs::write(home.path().join("prometheus.yml"), config).unwrap();
        let port = free_port();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", home.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", home.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus (Debian: prometheus)");
        Self { _child: child.into(), port, _home: home }
    }

    /// Returns the series of a query, or the error.
    fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let url = format!("http://127.0.0.1:{}/api/v1/query", self.port);
        let done = Command::new("curl")
            .args(["-s", "-G", &url, "--data-urlencode", &format!("query={query}")])
            .output()
            .expect("curl");
        let answer: Value = serde_json::from_slice(&done.stdout).map_err(|e| e.to_string())?;
        match answer["data"]["result"].as_array() {
            Some(series) if answer["status"] == "success" => Ok(series.clone()),
            _ => Err(answer.to_string()),
        }
    }
}

/// Returns the queries of all panels of the dashboard.
fn queries() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("expr").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| collect(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let text = fs::read(deploy("grafana/lowtide.json")).unwrap();
    let mut found = Vec::new();
    collect(&serde_json::from_slice(&text).unwrap(), &mut found);
    found
}

#[test]
#[ignore = "needs promtool (Debian: prometheus)"]
fn the_alerting_rules_pass_their_promtool_tests() {
    promtool(&["check", "rules", "lowtide.rules.yml"]);
    promtool(&["test", "rules", "lowtide.rules.test.yml"]);
    promtool(&["check", "config", "prometheus.yml"]);
}

#[test]
#[ignore = "needs prometheus and curl (Debian: prometheus, curl)"]
fn every_dashboard_query_returns_data() {
    let named = Named::start(&format!("fl{}", std::process::id()));
    let exporter = Exporter::on_any_port(&["--comm", &named.name]);
    let address = exporter.address().to_owned();
    // The metrics of `attach --textfile` are not scraped here.
    let prometheus = Prometheus::start(&[&address]);
    let metrics = until("a scrape after all inspections", || {
        let waiting = prometheus.query("sum(lowtide_uninspected_processes) == 0").ok()?;
        (!waiting.is_empty()).then_some(())?;
        // Two evaluations of the rules: some rules use the results of others.
        let done = prometheus.query("instance_groupname:lowtide_held_bytes:deriv1h").ok()?;
        (!done.is_empty()).then_some(())?;
        let rates = prometheus.query("rate(lowtide_exporter_cpu_seconds_total[1m])").ok()?;
        (!rates.is_empty()).then_some(())?;
        prometheus.query("{__name__=~\"lowtide_.+\"}").ok()
    });
    let names: BTreeSet<&str> =
        metrics.iter().filter_map(|series| series["metric"]["__name__"].as_str()).collect();
    let group = metrics
        .iter()
        .find(|series| {
            series["metric"]["__name__"] == "lowtide_allocators"
                && series["metric"]["libc_version"]
                    .as_str()
                    .is_some_and(|version| !version.is_empty())
        })
        .unwrap_or_else(|| panic!("{names:?}"));
    let group = group["metric"]["groupname"].as_str().unwrap();
    let queries = queries();
    assert!(queries.len() > 25, "{queries:#?}");
    for query in queries {
        let filled = query
            .replace("$instance", &address)
            .replace("$groupname", group)
            .replace("$program", "server")
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1m");
        let series = prometheus.query(&filled).unwrap_or_else(|error| panic!("{query}: {error}"));
        // These need the releases of `attach`, two versions of a C library, or groups by cgroup.
        let needs_more = [
            "lowtide_returned",
            "lowtide_refaulted",
            "lowtide_pause",
            "ratio_to_least",
            "lowtide_cgroup",
        ];
        if !needs_more.iter().any(|part| query.contains(part)) {
            assert!(!series.is_empty(), "{filled}");
        }
    }
}

#[test]
#[ignore = "needs promtool (Debian: prometheus)"]
fn promtool_accepts_the_metrics() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("lowtide.prom");
    let mut exporter = lowtide()
        .args(["exporter", "--textfile", path.to_str().unwrap()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let file = until("the metrics", || fs::File::open(&path).ok());
    let done =
        Command::new("promtool").args(["check", "metrics"]).stdin(file).output().expect("promtool");
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.is_empty(), "{said}");
}

#[test]
#[ignore = "needs systemd-analyze (Debian: systemd)"]
fn the_exporter_unit_is_confined_and_the_attach_unit_has_no_seccomp_filter() {
    let exposure = |unit: &str| -> f64 {
        let done = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(deploy(unit))
            .output()
            .expect("systemd-analyze (Debian: systemd)");
        let text = String::from_utf8_lossy(&done.stdout);
        let last = text.lines().rfind(|line| line.contains("Overall exposure level"));
        let last = last.unwrap_or_else(|| panic!("{text}"));
        let (_, level) = last.rsplit_once(": ").unwrap();
        level.split(' ').next().unwrap().parse().unwrap()
    };
    assert!(exposure("systemd/lowtide-exporter.service") < 3.0);
    // systemd.exec(5), and context_has_seccomp() in systemd's src/core/exec-invoke.c.
    let filters = [
        "SystemCall",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "ProtectKernel",
        "ProtectClock",
        "ProtectHostname",
        "PrivateDevices",
        "DynamicUser",
    ];
    let unit = fs::read_to_string(deploy("systemd/lowtide-attach.service")).unwrap();
    for line in unit.lines().filter(|line| !line.starts_with('#')) {
        assert!(!filters.iter().any(|name| line.starts_with(name)), "{line}");
    }
}

#[test]
fn the_commands_of_units_and_pods_parse() {
    let mut commands = Vec::new();
    for unit in ["exporter", "attach", "black-box"] {
        let unit = format!("systemd/lowtide-{unit}.service");
        let text = fs::read_to_string(deploy(&unit)).unwrap().replace("\\\n", " ");
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        commands.push(line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>());
    }
    for pod in ["exporter", "attach", "black-box"] {
        let text = fs::read_to_string(deploy(&format!("kubernetes/{pod}-daemonset.yaml"))).unwrap();
        let (_, rest) = text.split_once("args:").unwrap();
        let words = rest.lines().skip(1).map(str::trim);
        let words = words.skip_while(|line| line.starts_with('#'));
        let words = words.take_while(|line| line.starts_with("- ") || line.starts_with('#'));
        let words = words.filter_map(|line| line.strip_prefix("- "));
        commands.push(words.map(|word| word.trim_matches('"').to_owned()).collect());
    }
    for words in commands {
        let words: Vec<String> =
            words.iter().map(|word| word.replace("$(POD_IP)", "127.0.0.1")).collect();
        // With `--help` after the other words, they are parsed, but nothing is started.
        let done = lowtide().args(&words).arg("--help").output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
#[ignore = "needs kubernetes-validate (pip), by its path in LOWTIDE_TEST_KUBERNETES_VALIDATE"]
fn the_manifests_match_the_kubernetes_schemas() {
    let Some(program) = std::env::var_os("LOWTIDE_TEST_KUBERNETES_VALIDATE") else {
        panic!("LOWTIDE_TEST_KUBERNETES_VALIDATE is not set: .ci/run installs it");
    };
    let done = Command::new(program)
        .args(["--strict", "-k", "1.34"])
        .arg(deploy("kubernetes/namespace.yaml"))
        .arg(deploy("kubernetes/exporter-daemonset.yaml"))
        .arg(deploy("kubernetes/attach-daemonset.yaml"))
        .arg(deploy("kubernetes/black-box-daemonset.yaml"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
}
