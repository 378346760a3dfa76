//! Several files.

use serde_json::{Value, json as value};

use crate::{loaded, service, web};

/// The key of `web` after the second file is merged into the first.
fn check(base: &str, over: &str, key: &str, expected: &Value) {
    let over = format!("services:\n  web:\n    {over}\n");
    let defined = "volumes: {a: , b: }\nsecrets: {s: {file: f}, t: {file: f}}\nnetworks: {n: , m: }\n";
    let base_text = web(base) + defined;
    let project = loaded(&[("compose.yaml", &base_text), ("compose.over.yaml", &over)]);
    assert_eq!(&service(&project, "web")[key], expected, "{base} + {over}");
}

#[test]
fn mappings_are_merged_and_lists_appended() {
    check("labels: {a: 1, b: 2}", "labels: [b=3, c=4]", "labels", &value!({"a": "1", "b": "3", "c": "4"}));
    check("cap_add: [A, B]", "cap_add: [B, C]", "cap_add", &value!(["A", "B", "C"]));
    check("dns: 1.1.1.1", "dns: [8.8.8.8]", "dns", &value!(["1.1.1.1", "8.8.8.8"]));
    check("user: a", "user: b", "user", &value!("b"));
    check(
        "healthcheck: {test: a, interval: 1s}",
        "healthcheck: {test: [CMD, b], retries: 2}",
        "healthcheck",
        &value!({"test": ["CMD", "b"], "interval": "1s", "retries": 2}),
    );
    check(
        "networks: [n]",
        "networks: {n: {aliases: [x]}, m: }",
        "networks",
        &value!({
            "n": {"aliases": ["x"]}, "m": {},
        }),
    );
    check("labels: {a: 1}", "labels:", "labels", &value!({"a": "1"}));
}

#[test]
fn commands_are_replaced() {
    check("command: [a, b]", "command: c", "command", &value!(["c"]));
    check("entrypoint: [a, b]", "entrypoint: [c]", "entrypoint", &value!(["c"]));
}

#[test]
fn items_with_the_same_key_are_replaced() {
    check(
        "volumes: ['a:/work', 'a:/x']",
        "volumes: ['b:/work:ro']",
        "volumes",
        &value!([
            {"type": "volume", "source": "b", "target": "/work", "read_only": true},
            {"type": "volume", "source": "a", "target": "/x"},
        ]),
    );
    check(
        "secrets: [s]",
        "secrets: [{source: s, mode: 0444}, t]",
        "secrets",
        &value!([
            {"source": "s", "mode": "0444"}, {"source": "t"},
        ]),
    );
    check(
        "ports: ['80:80', '81:81']",
        "ports: ['80:80', '80:80/udp']",
        "ports",
        &value!([
            {"target": 80, "published": "80", "protocol": "tcp"},
            {"target": 81, "published": "81", "protocol": "tcp"},
            {"target": 80, "published": "80", "protocol": "udp"},
        ]),
    );
}

#[test]
fn options_of_another_logging_driver_are_not_kept() {
    let base = "logging: {driver: local, options: {max-size: 1m}}";
    check(
        base,
        "logging: {options: {max-file: 2}}",
        "logging",
        &value!({
            "driver": "local", "options": {"max-size": "1m", "max-file": "2"},
        }),
    );
    let other = value!({"driver": "json-file", "options": {"max-file": "2"}});
    check(base, "logging: {driver: json-file, options: {max-file: 2}}", "logging", &other);
}

#[test]
fn reset_removes_and_override_replaces() {
    check("ports: ['80:80']", "ports: !reset []", "ports", &Value::Null);
    check("environment: {A: 1, B: 2}", "environment: {A: !reset null}", "environment", &value!({"B": "2"}));
    check(
        "ports: ['80:80']",
        "ports: !override ['81:81']",
        "ports",
        &value!([
            {"target": 81, "published": "81", "protocol": "tcp"},
        ]),
    );
    check("labels: {a: 1}", "labels: !override {b: 2}", "labels", &value!({"b": "2"}));
    let project = loaded(&[("compose.yaml", &(web("") + "  old: !reset {image: x}\n"))]);
    assert_eq!(service(&project, "old"), Value::Null);
}

#[test]
fn three_files_are_merged_in_order() {
    let file = |keys: &str| format!("services:\n  web:\n    image: a\n    {keys}\n");
    let files = [file("ports: ['1:1']"), file("ports: !reset []"), file("ports: ['2:2']")];
    let named = ["compose.1.yaml", "compose.2.yaml", "compose.3.yaml"];
    let given: Vec<(&str, &str)> = named.into_iter().zip(files.iter().map(String::as_str)).collect();
    assert_eq!(
        service(&loaded(&given), "web")["ports"],
        value!([
            {"target": 2, "published": "2", "protocol": "tcp"},
        ])
    );
}
