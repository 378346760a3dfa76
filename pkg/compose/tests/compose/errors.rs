//! What is wrong is named with file, line, column and key.

use crate::{problems, warnings, web};

#[test]
fn wrong_value_is_named() {
    for (keys, expected) in [
        (
            "imgae: x",
            "4:5: services.web: \"imgae\" is not a key of the Compose format here; did you mean \"image\"?",
        ),
        ("deploy: {replicas: many}", "4:24: services.web.deploy.replicas: \"many\" is not a whole number"),
        ("deploy: [x]", "4:13: services.web.deploy: is a list; give a mapping"),
        ("user: 1000", "4:11: services.web.user: is a number; write it in quotes: \"1000\""),
        ("init: maybe", "4:11: services.web.init: \"maybe\" is not true or false"),
        ("ports: ['80:x']", "4:13: services.web.ports[0]: \"x\" is not a port; give one of 1 to 65535"),
        ("ports: ['1-2:1-3']", "4:13: services.web.ports[0]: \"1-2:1-3\" maps 2 ports to 3"),
        ("ports: ['1-257']", "4:13: services.web.ports[0]: \"1-257\" are 257 ports, more than 256"),
        ("ports: 80", "4:12: services.web.ports: is a number; give a list"),
        ("command: \"a 'b\"", "4:14: services.web.command: a quote ' is not closed"),
        ("cap_add: [5]", "4:15: services.web.cap_add: has a number; give a text in quotes"),
        ("environment: [[a]]", "4:19: services.web.environment: has a list; give KEY=VALUE"),
        ("environment: {A: [a]}", "4:22: services.web.environment: has a list; give a text"),
        (
            "stop_grace_period: 10",
            "4:24: services.web.stop_grace_period: \"10\" is not a duration like 1m30s",
        ),
        ("shm_size: 1x", "4:15: services.web.shm_size: \"1x\" is not a number of bytes like 1024 or 64m"),
        (
            "secrets: [{source: a, mode: '9'}]",
            "4:33: services.web.secrets[0].mode: \"9\" is not permission bits",
        ),
        ("volumes: ['a:/b:rx']", "4:15: services.web.volumes[0]: \"rx\" is not an option of a volume"),
        ("volumes: [{target: /x}]", "4:15: services.web.volumes[0]: the type is missing"),
        ("extra_hosts: [a]", "4:19: services.web.extra_hosts: \"a\" is not NAME=ADDRESS"),
        (
            "networks: [back]",
            "4:16: services.web.networks: there is no network \"back\"; define it in the top-level",
        ),
        ("volumes: ['data:/d']", "4:15: services.web.volumes: there is no volume \"data\"; define it"),
        ("secrets: [key]", "4:15: services.web.secrets: there is no secret \"key\"; define it"),
        ("configs: [app]", "4:15: services.web.configs: there is no config \"app\"; define it"),
        (
            "depends_on: [wep]",
            "4:18: services.web.depends_on.wep: there is no service \"wep\"; did you mean \"web\"?",
        ),
        (
            "privileged: true\nprivileged: true",
            "5:5: \"privileged\" is given twice; the other one is in line 4",
        ),
        ("image: y", "4:5: \"image\" is given twice; the other one is in line 3"),
        (
            "pid: host",
            "4:5: services.web.pid: is not supported by this version: a task does not share namespaces",
        ),
        ("gpus: all", "4:5: services.web.gpus: is not supported by this version"),
    ] {
        let found = problems(&web(keys));
        assert!(found.starts_with(&format!("compose.yaml:{expected}")), "{keys}: {found}");
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let found = problems(&web("init: maybe\ntty: perhaps\nprots: []"));
    assert_eq!(found.lines().count(), 3, "{found}");
}

#[test]
fn services_that_depend_on_each_other_are_named() {
    let text = "services:\n  d: {image: x, depends_on: [a]}\n  a: {image: x, depends_on: [b]}\n  \
                b: {image: x, links: [c]}\n  c: {image: x, depends_on: [a]}\n";
    let expected =
        "compose.yaml:3:3: services.a.depends_on: services depend on each other: a -> b -> c -> a\n";
    assert_eq!(problems(text), expected);
}

#[test]
fn missing_dependency_may_be_optional() {
    let text = web("depends_on: {db: {condition: service_started, required: false}}");
    assert_eq!(warnings(&text), "");
}

#[test]
fn key_without_effect_is_a_warning() {
    for (keys, expected) in [
        (
            "domainname: x",
            "4:5: services.web.domainname: has no effect: containers have no domain; give the whole name",
        ),
        (
            "build: {context: ., ssh: [default]}",
            "4:25: services.web.build.ssh: has no effect: secrets do not reach this build",
        ),
        ("networks: {default: {priority: 5}}", "4:26: services.web.networks.default.priority: has no effect"),
    ] {
        let found = warnings(&web(keys));
        assert!(found.starts_with(&format!("compose.yaml:{expected}")), "{keys}: {found}");
    }
    let found = warnings(&format!("version: '3.8'\n{}", web("")));
    assert!(
        found.starts_with("compose.yaml:1:1: version: has no effect: the format has no versions"),
        "{found}"
    );
}

#[test]
fn file_without_services_is_an_error() {
    assert!(problems("").starts_with("compose.yaml:1:1: the file is empty; give at least `services`"));
    assert!(
        problems("web:\n  image: x")
            .contains("compose.yaml:1:1: \"web\" is not a key of the Compose format here")
    );
    assert!(problems("- x").contains("compose.yaml:1:1: is a list; give a mapping"));
}
