//! Short forms and long forms.

use serde_json::{Value, json as value};

use crate::{json, loaded, service, web};

fn check(keys: &str, key: &str, expected: &Value) {
    let project = loaded(&[("compose.yaml", &web(keys))]);
    assert_eq!(&service(&project, "web")[key], expected, "{keys}");
}

#[test]
fn short_forms_become_long_ones() {
    check("command: sh -c 'echo $$A'", "command", &value!(["sh", "-c", "echo $$A"]));
    check("entrypoint: [a, b c]", "entrypoint", &value!(["a", "b c"]));
    let environment = value!({"A": "1", "B": "true", "C": "x=y"});
    check("environment: {A: 1, B: true, C: x=y, D: }", "environment", &environment);
    check("environment: [A=1, B=true, C=x=y, D]", "environment", &environment);
    check("labels: [a=1, b]", "labels", &value!({"a": "1", "b": null}));
    check("dns: 1.1.1.1", "dns", &value!(["1.1.1.1"]));
    check("tmpfs: /tmp:size=1m", "tmpfs", &value!(["/tmp:size=1m"]));
    check("healthcheck: {test: curl x}", "healthcheck", &value!({"test": ["CMD-SHELL", "curl x"]}));
    check("secrets: []", "secrets", &value!([]));
    check(
        "extra_hosts: ['a=10.0.0.1', 'a:10.0.0.2', 'b=[::1]']",
        "extra_hosts",
        &value!({"a": ["10.0.0.1", "10.0.0.2"], "b": ["::1"]}),
    );
    check("extra_hosts: {a: 10.0.0.1}", "extra_hosts", &value!({"a": ["10.0.0.1"]}));
    check(
        "ulimits: {nofile: 1024, nproc: {soft: '1', hard: 2}}",
        "ulimits",
        &value!({
            "nofile": {"soft": 1024, "hard": 1024}, "nproc": {"soft": 1, "hard": 2},
        }),
    );
    check(
        "devices: ['/dev/a', '/dev/b:/dev/c:r']",
        "devices",
        &value!([
            {"source": "/dev/a", "target": "/dev/a", "permissions": "rwm"},
            {"source": "/dev/b", "target": "/dev/c", "permissions": "r"},
        ]),
    );
    check("stop_grace_period: 90s", "stop_grace_period", &value!("1m30s"));
    check("shm_size: 64m", "shm_size", &value!("67108864"));
    check("init: 'yes'", "init", &value!(true));
    check("networks: [default]", "networks", &value!({"default": {}}));
    check("restart: 'no'", "restart", &value!("no"));
    check("x-note: {a: [1]}", "x-note", &value!({"a": [1]}));
}

#[test]
fn ports_have_one_long_form_each() {
    check(
        "ports: [80, '8080:80', '127.0.0.1::53/udp', '[::1]:1-2:3-4', '3000-3005:80']",
        "ports",
        &value!([
            {"target": 80, "protocol": "tcp"},
            {"target": 80, "published": "8080", "protocol": "tcp"},
            {"target": 53, "protocol": "udp", "host_ip": "127.0.0.1"},
            {"target": 3, "published": "1", "protocol": "tcp", "host_ip": "::1"},
            {"target": 4, "published": "2", "protocol": "tcp", "host_ip": "::1"},
            {"target": 80, "published": "3000-3005", "protocol": "tcp"},
        ]),
    );
    check(
        "ports: [{target: '80', published: 8080, mode: host}]",
        "ports",
        &value!([
            {"target": 80, "published": "8080", "protocol": "tcp", "mode": "host"},
        ]),
    );
}

#[test]
fn mounts_are_binds_or_volumes() {
    let text = web("volumes: ['data:/d:ro,nocopy', './x:/x', '/srv:/srv:z,rslave', '/anonymous']")
        + "volumes: {data: }\n";
    let project = loaded(&[("compose.yaml", &text)]);
    assert_eq!(
        service(&project, "web")["volumes"],
        value!([
            {"type": "volume", "source": "data", "target": "/d", "read_only": true, "volume": {"nocopy": true}},
            {"type": "bind", "source": "/app/x", "target": "/x", "x-warren-local": true},
            {"type": "bind", "source": "/srv", "target": "/srv",
             "bind": {"selinux": "z", "propagation": "rslave"}},
            {"type": "volume", "target": "/anonymous"},
        ])
    );
}

#[test]
fn name_of_external_object_may_be_below_external() {
    let text = web("networks: [a]") + "networks: {a: {external: {name: b}}}\n";
    let project = loaded(&[("compose.yaml", &text)]);
    assert_eq!(json(&project)["networks"]["a"], value!({"external": true, "name": "b"}));
}

#[test]
fn output_is_a_file_that_means_the_same() {
    let text = include_str!("full.yaml");
    let files = [("compose.yaml", text), ("web.env", "E=1\nF=$$x\n"), ("web.labels", "l=1\n")];
    let first = loaded(&files);
    let once = serde_saphyr::to_string(&json(&first)).unwrap();
    let again = loaded(&[("compose.yaml", &once)]);
    assert_eq!(json(&again), json(&first), "{once}");
    assert!(once.contains("$$x"), "{once}");
}
