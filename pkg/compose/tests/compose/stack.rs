//! Projects as objects of Warren.

use std::collections::BTreeSet;

use serde_json::Value;
use warren_compose::schema::{KeySupport, ValueForm, schema_keys};
use warren_compose::stack::{SecretObjectSource, StackObjects, stack};
use warren_compose::{SourcePosition, ValuePosition};
use warren_types::{NoNewPrivileges, Seccomp, SecretObjectKind, ServiceSpec};

use crate::{json, lines, loaded, web};

pub fn objects(files: &[(&str, &str)]) -> Result<StackObjects, String> {
    let project = loaded(files).map_err(|problems| lines(&problems))?;
    stack(&project, &"shop".parse().unwrap()).map_err(|problems| lines(&problems))
}

pub fn spec(keys: &str) -> ServiceSpec {
    let objects = objects(&[("compose.yaml", &web(keys))]).unwrap_or_else(|why| panic!("{keys}: {why}"));
    objects.services[0].spec.clone()
}

#[test]
fn file_of_a_seccomp_profile_is_a_config() {
    let found = objects(&[("compose.yaml", &web("security_opt: ['seccomp:./strict.json']"))]).unwrap();
    let task = &found.services[0].spec.task;
    assert_eq!(task.seccomp.to_string(), "config/shop_web.seccomp");
    let [profile] = &found.secret_objects[..] else { panic!("{:?}", found.secret_objects) };
    assert_eq!((profile.kind, profile.name.as_str()), (SecretObjectKind::Config, "shop_web.seccomp"));
    assert_eq!(profile.labels["com.docker.stack.namespace"], "shop");
    let SecretObjectSource::File(path) = &profile.source else { panic!("{:?}", profile.source) };
    assert!(path.is_absolute() && path.ends_with("strict.json"), "{path:?}");
    for (options, seccomp) in [
        ("[seccomp=unconfined]", Seccomp::Unconfined),
        ("[seccomp:builtin]", Seccomp::Default),
        ("['seccomp:./strict.json', seccomp:unconfined]", Seccomp::Unconfined),
    ] {
        let keys = format!("security_opt: {options}");
        let found = objects(&[("compose.yaml", &web(&keys))]).unwrap();
        assert_eq!(found.services[0].spec.task.seccomp, seccomp, "{options}");
        assert!(found.secret_objects.is_empty(), "{options}");
    }
    let allowing = spec("security_opt: [no-new-privileges=false]");
    assert_eq!(allowing.task.no_new_privileges, NoNewPrivileges::Off);
    for (option, profile) in [
        ("apparmor:docker-default", "default"),
        ("apparmor=unconfined", "unconfined"),
        ("apparmor:web", "web"),
    ] {
        let confined = spec(&format!("security_opt: ['{option}']"));
        assert_eq!(confined.task.apparmor.to_string(), profile, "{option}");
    }
}

#[test]
fn objects_have_the_name_of_the_stack_and_its_label() {
    let text = "
services:
  web: {image: 'web:1', networks: [front, back], volumes: ['data:/d'], secrets: [key], configs: [app], depends_on: [db]}
  db: {image: 'db:1'}
networks: {front: , back: {internal: true}, other: {external: true}}
volumes: {data: , named: {name: plain}, kept: {external: true, name: old}}
secrets: {key: {file: key.pem}}
configs: {app: {content: x}, ready: {external: true}}
";
    let found = objects(&[("compose.yaml", text)]).unwrap();
    let networks: Vec<String> =
        found.networks.iter().map(|network| format!("{} {}", network.name, network.internal)).collect();
    assert_eq!(networks, ["shop_default false", "shop_back true", "shop_front false"]);
    let volumes: Vec<&str> = found.volumes.iter().map(|volume| volume.name.as_str()).collect();
    assert_eq!(volumes, ["shop_data", "plain"]);
    let kept: Vec<&str> = found.secret_objects.iter().map(|object| object.name.as_str()).collect();
    assert_eq!(kept, ["shop_key", "shop_app"]);
    let external: Vec<&str> = found.external.iter().map(|object| object.name.as_str()).collect();
    assert_eq!(external, ["other", "old", "ready"]);
    let names: Vec<&str> = found.services.iter().map(|service| service.spec.name.as_str()).collect();
    assert_eq!(names, ["shop_db", "shop_web"], "dependencies come first");
    for labels in found.networks.iter().map(|network| &network.labels).chain(
        found
            .services
            .iter()
            .map(|service| &service.spec.labels)
            .chain(found.volumes.iter().map(|v| &v.labels)),
    ) {
        assert_eq!(labels["com.docker.stack.namespace"], "shop");
    }
    let json = serde_json::to_value(&found.services[1].spec).unwrap();
    let networks = serde_json::json!({"networks": [
        {"network": "shop_back", "aliases": ["web"]}, {"network": "shop_front", "aliases": ["web"]},
    ]});
    assert_eq!(json["task"]["network"], networks);
    assert_eq!(json["task"]["secrets"][0]["target"], "/run/secrets/key");
    assert_eq!(json["task"]["configs"][0]["target"], "/app");
    assert_eq!(json["task"]["secrets"][0]["mode"], "0444");
}

#[test]
fn values_of_compose_mean_the_same_here() {
    let json = |keys: &str| serde_json::to_value(spec(keys)).unwrap();
    for (keys, path, expected) in [
        ("restart: 'no'", "/task/restart/condition", "\"none\""),
        ("restart: unless-stopped", "/task/restart/condition", "\"any\""),
        ("restart: on-failure:5", "/task/restart/max", "5"),
        ("mem_limit: 64m", "/task/limits/memory", "\"64MiB\""),
        ("cpus: .5", "/task/limits/cpu", "\"0.5\""),
        ("cpus: 1.5", "/task/limits/cpu", "\"1.5\""),
        ("pids_limit: -1", "/task/limits/pids", "4194304"),
        ("storage_opt: {size: 2G}", "/task/storageLimit", "\"2GiB\""),
        ("entrypoint: []\ncommand: [a, b]", "/task/command", "[\"a\",\"b\"]"),
        ("command: []", "/task/args", "[]"),
        ("healthcheck: {test: [NONE]}", "/task/health", "null"),
        ("healthcheck: {test: x y}", "/task/health/probe/exec/command", "[\"/bin/sh\",\"-c\",\"x y\"]"),
        ("healthcheck: {test: [CMD, x, y]}", "/task/health/timeout", "\"30s\""),
        ("ports: ['0.0.0.0:80:80']", "/ports/0/hostIp", "null"),
        ("ports: ['80']", "/ports/0/hostPort", "0"),
        (
            "deploy: {placement: {constraints: [node.hostname==a, node.platform.os != windows]}}",
            "/placement/constraints",
            "[\"node.name == a\",\"node.os != windows\"]",
        ),
        (
            "platform: linux/arm64/v8",
            "/placement/constraints",
            "[\"node.os == linux\",\"node.arch == arm64\"]",
        ),
        ("ulimits: {nofile: {soft: 5, hard: -1}}", "/task/ulimits/0/hard", "\"unlimited\""),
        ("extra_hosts: ['a=10.0.0.1', 'a=10.0.0.2']", "/task/hosts/1/address", "\"10.0.0.2\""),
        ("network_mode: host", "/task/network", "\"host\""),
        ("logging: {options: {max-size: 1g}}", "/task/logs/maxSize", "\"1GiB\""),
        ("tmpfs: '/t:size=1m,mode=700,exec'", "/task/mounts/0/source/tmpfs/size", "\"1MiB\""),
        ("deploy: {mode: global}", "/mode", "\"global\""),
        (
            "deploy: {placement: {preferences: [{spread: node.labels.zone}, {spread: engine.labels.rack}]}}",
            "/placement/preferences",
            "[\"spread=node.labels.zone\",\"spread=engine.labels.rack\"]",
        ),
    ] {
        let found = json(keys);
        let found = found.pointer(path).cloned().unwrap_or(Value::Null);
        assert_eq!(found.to_string(), expected, "{keys}");
    }
}

#[test]
fn what_warren_cannot_do_is_refused_with_its_position() {
    for (keys, expected) in [
        ("ipc: host", "4:10: services.web.ipc: \"host\" is not supported by this version; give private"),
        (
            "storage_opt: {inodes: 5}",
            "4:27: services.web.storage_opt.inodes: is not supported by this version",
        ),
        (
            "storage_opt: {size: much}",
            "4:25: services.web.storage_opt.size: \"much\" is not a number of bytes",
        ),
        (
            "userns_mode: auto",
            "4:18: services.web.userns_mode: \"auto\" is not a user namespace; give host or private",
        ),
        ("pull_policy: daily", "4:18: services.web.pull_policy: \"daily\" is not supported by this version"),
        ("network_mode: bridge", "4:19: services.web.network_mode: \"bridge\" is not supported"),
        ("network_mode: 'service:db'", "4:19: services.web.network_mode"),
        ("ports: ['[::1]:80:80']", "4:13: services.web.ports[0].host_ip: "),
        ("ports: ['3000-3005:80']", "4:13: services.web.ports[0].published: a port of a range is not chosen"),
        (
            "ports: ['80:80', '80:81']",
            "4:12: services.web.ports: host port 80 is already published by ports[0]",
        ),
        ("healthcheck: {interval: 5s}", "4:18: services.web.healthcheck: has no `test`"),
        ("healthcheck: {test: [x]}", "4:25: services.web.healthcheck.test: begins with CMD"),
        ("healthcheck: {test: x, interval: 1ms}", "4:18: services.web.healthcheck: 1ms is not between"),
        ("security_opt: [label:x]", "4:20: services.web.security_opt[0]: \"label:x\" is not supported"),
        ("volumes: [/data]", "4:15: services.web.volumes[0]: has no name: every volume has one here"),
        (
            "volumes: [{type: image, source: x, target: /x}]",
            "4:22: services.web.volumes[0].type: \"image\" is not",
        ),
        (
            "volumes: [{type: tmpfs, target: /x, bind: {selinux: z}}]",
            "4:47: services.web.volumes[0].bind: has no",
        ),
        ("tmpfs: ['/x:uid=5']", "4:13: services.web.tmpfs[0]: the option \"uid=5\" is not supported"),
        ("restart: sometimes", "4:14: services.web.restart: \"sometimes\" is not a restart policy"),
        ("scale: 2\ndeploy: {replicas: 3}", "4:12: services.web.scale: is 2, but deploy.replicas is 3"),
        (
            "mem_limit: 8m\ndeploy: {resources: {limits: {memory: 16m}}}",
            "4:16: services.web.mem_limit: differs",
        ),
        (
            "deploy: {mode: replicated-job}",
            "4:20: services.web.deploy.mode: \"replicated-job\" is not supported",
        ),
        (
            "deploy: {mode: global, replicas: 2}",
            "4:13: services.web.deploy: a global service has one task per",
        ),
        (
            "deploy: {placement: {constraints: [engine.name==1]}}",
            "4:40: services.web.deploy.placement.constraints[0]",
        ),
        (
            "deploy: {placement: {preferences: [{spread: engine.name}]}}",
            "4:49: services.web.deploy.placement.preferences[0].spread: \"spread=engine.name\" is not",
        ),
        (
            "post_start: [{command: a, privileged: true}]",
            "4:43: services.web.post_start[0].privileged: a hook has the rights of its container",
        ),
        ("pre_stop: [{user: a}]", "4:15: services.web.pre_stop: is empty; give a program"),
        (
            "pre_start: [{image: x}]",
            "4:5: services.web.pre_start: is not supported by this version: give post_start",
        ),
        (
            "deploy: {placement: {preferences: [{}]}}",
            "4:40: services.web.deploy.placement.preferences[0]: has no label; give `spread`",
        ),
        (
            "deploy: {restart_policy: {delay: 0s}}",
            "4:13: services.web.deploy: is not between 100 ms and 5 minutes (task.restart",
        ),
        (
            "restart: always\ndeploy: {restart_policy: {delay: 0s}}",
            "5:13: services.web.deploy: is not between 100 ms and 5 minutes (task.restart",
        ),
        ("user: a b", "4:11: services.web.user: \"a b\" is not user[:group]"),
        ("oom_score_adj: 2000", "4:20: services.web.oom_score_adj: 2000 is not between -1000 and 1000"),
        ("cap_add: [NET]", "4:15: services.web.cap_add[0]: \"NET\" is not a Linux capability"),
        (
            "extra_hosts: ['a=host-gateway']",
            "4:19: services.web.extra_hosts.a: \"host-gateway\" is not an IPv4",
        ),
        ("dns: ['::1']", "4:11: services.web.dns[0]: "),
        ("links: ['web2:x']\n", "4:13: services.web.depends_on.web2:x: there is no service"),
        ("entrypoint: []", "4:17: services.web.entrypoint: is empty, and `command` names no program"),
        ("environment: {A: '{{.Nothing}}'}", "4:18: services.web.environment: "),
        (
            "volumes: ['/run/docker.sock:/var/run/docker.sock:ro']",
            "4:15: services.web.volumes[0].source: is the socket of Docker, which nodes do not run",
        ),
        ("build: {target: x}", "4:12: services.web.build: has no directory; give `context`"),
        (
            "build: {context: ., platforms: [a, b]}",
            "4:36: services.web.build.platforms: nodes get one platform",
        ),
        (
            "build: {context: ., dockerfile: a, dockerfile_inline: b}",
            "4:59: services.web.build.dockerfile_inline",
        ),
        ("pull_policy: build", "4:18: services.web.pull_policy: \"build\" is not supported"),
        (
            "depends_on: {web2: {condition: never}}\n",
            "4:24: services.web.depends_on.web2: there is no service \"web2\"",
        ),
    ] {
        let found = objects(&[("compose.yaml", &web(keys))]).expect_err(keys);
        assert!(found.starts_with(&format!("compose.yaml:{expected}")), "{keys}: {found}");
    }
    for (text, expected) in [
        (
            "services:\n  a: {build: ., image: x}\n  b: {build: b, image: x}",
            "compose.yaml:3:14: services.b.build: builds the image x in another way than services.a.build (compose",
        ),
        (
            "services:\n  a: {image: x, depends_on: {b: {condition: service_completed_successfully}}}\n  \
             b: {image: x, restart: always}",
            "compose.yaml:3:26: services.b.restart: starts it again after its end, but another service waits",
        ),
        ("services:\n  web: {user: a}", "compose.yaml:2:8: services.web: has no image; give `image`"),
        ("services:\n  Web: {image: x}", "compose.yaml:2:8: services.Web: \"Web\" is not a DNS label"),
    ] {
        let found = objects(&[("compose.yaml", text)]).expect_err(text);
        assert!(found.starts_with(expected), "{text}: {found}");
    }
    for (section, expected) in [
        ("networks: {n: {driver: macvlan}}", "4:24: networks.n.driver: there is one network driver"),
        ("networks: {n: {enable_ipv6: true}}", "4:29: networks.n.enable_ipv6: this version has no IPv6"),
        (
            "networks: {n: {external: true, internal: true}}",
            "4:42: networks.n.internal: has no meaning for what exists",
        ),
        ("volumes: {v: {driver: nfs}}", "4:23: volumes.v.driver: "),
        ("volumes: {v: {driver_opts: {type: nfs}}}", "4:28: volumes.v.driver_opts: "),
        ("secrets: {s: {}}", "4:14: secrets.s: give exactly one of"),
        ("configs: {c: {file: a, content: b}}", "4:14: configs.c: give exactly one of"),
        (
            "secrets: {s: {file: a, template_driver: x}}",
            "4:41: secrets.s.template_driver: only golang is known",
        ),
    ] {
        let found = objects(&[("compose.yaml", &(web("") + section))]).expect_err(section);
        assert!(found.starts_with(&format!("compose.yaml:{expected}")), "{section}: {found}");
    }
}

#[test]
fn services_do_not_publish_the_same_port() {
    let text = |ports: &str| {
        format!("services:\n  a: {{image: x, ports: ['80:80']}}\n  b: {{image: x, ports: {ports}}}")
    };
    let check = |ports: &str| objects(&[("compose.yaml", &text(ports))]).map(|_| ());
    let expected = "compose.yaml:3:25: services.b.ports[0]: host port 80 is also published by services.a.ports[0] \
                    (compose.yaml:2:25); give another port\n";
    assert_eq!(check("['80:81']"), Err(expected.to_owned()));
    assert!(check("['127.0.0.1:80:81']").is_err());
    assert_eq!(check("['80:81/udp', '81:80', '80']"), Ok(()));
    let both = "['127.0.0.1:81:80', '127.0.0.2:81:80']";
    assert_eq!(check(both), Ok(()));
}

/// Everything that is sent, without positions.
fn sent(text: &str) -> String {
    match objects(&[("compose.yaml", text)]) {
        Ok(StackObjects {
            mut networks,
            mut volumes,
            mut secret_objects,
            mut services,
            external,
            warnings: _,
        }) => {
            let nowhere = ValuePosition { at: SourcePosition::start_of(""), path: String::new() };
            networks.iter_mut().for_each(|network| network.defined = nowhere.clone());
            volumes.iter_mut().for_each(|volume| volume.defined = nowhere.clone());
            secret_objects.iter_mut().for_each(|object| object.defined = nowhere.clone());
            for service in &mut services {
                service.defined = nowhere.clone();
                service.ports.clear();
                service.build.iter_mut().for_each(|build| build.defined = nowhere.clone());
            }
            let external: Vec<&String> = external.iter().map(|object| &object.name).collect();
            format!("{networks:?}{volumes:?}{secret_objects:?}{services:?}{external:?}")
        }
        Err(problems) => format!("refused: {problems}"),
    }
}

/// All values of a document that a path of the schema stands for, as JSON pointers.
fn pointers(document: &Value, path: &str) -> Vec<String> {
    let mut found = vec![(String::new(), document)];
    for part in path.replace("[]", ".[]").split('.') {
        found = found
            .into_iter()
            .flat_map(|(pointer, value)| -> Vec<(String, &Value)> {
                match (part, value) {
                    ("*", Value::Object(map)) => {
                        map.iter().map(|(key, value)| (format!("{pointer}/{key}"), value)).collect()
                    }
                    ("[]", Value::Array(items)) => {
                        let item = |(i, value)| (format!("{pointer}/{i}"), value);
                        items.iter().enumerate().map(item).collect()
                    }
                    (key, value) => {
                        value.get(key).map(|value| (format!("{pointer}/{key}"), value)).into_iter().collect()
                    }
                }
            })
            .collect();
    }
    found.into_iter().map(|(pointer, _)| pointer).collect()
}

fn without(document: &Value, pointer: &str) -> String {
    let mut document = document.clone();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Object(map) => drop(map.remove(key)),
        Value::Array(items) => drop(items.remove(key.parse().unwrap())),
        _ => unreachable!(),
    }
    serde_saphyr::to_string(&document).unwrap()
}

/// Keys with one possible value, and those that are gone when a project is loaded.
const WITHOUT_EFFECT_ON_OBJECTS: [&str; 26] = [
    "configs.*.external.name",
    "include[].env_file",
    "include[].path",
    "include[].project_directory",
    "name",
    "networks.*.driver",
    "networks.*.enable_ipv4",
    "networks.*.enable_ipv6",
    "networks.*.external.name",
    "secrets.*.external.name",
    "services.*.cgroup",
    "services.*.depends_on.*.required",
    "services.*.env_file[].format",
    "services.*.env_file[].path",
    "services.*.env_file[].required",
    "services.*.extends.file",
    "services.*.extends.service",
    "services.*.ipc",
    "services.*.isolation",
    "services.*.label_file",
    "services.*.logging.driver",
    "services.*.ports[].mode",
    "services.*.post_start[].privileged",
    "services.*.pre_stop[].privileged",
    "services.*.profiles",
    "services.*.volumes[].bind.create_host_path",
];

#[test]
fn every_honoured_key_changes_what_is_sent() {
    let files = [("compose.yaml", include_str!("full.yaml")), ("web.env", "E=1"), ("web.labels", "l=1")];
    let document = json(&loaded(&files));
    let whole = sent(&serde_saphyr::to_string(&document).unwrap());
    assert!(!whole.starts_with("refused"), "{whole}");
    let mut exceptions: BTreeSet<&str> = WITHOUT_EFFECT_ON_OBJECTS.into();
    exceptions.insert("volumes.*.driver");
    exceptions.insert("volumes.*.external.name");
    let mut ignored = Vec::new();
    for key in schema_keys() {
        let is_honoured = matches!(key.support, KeySupport::Honoured | KeySupport::Partly(_));
        let is_leaf = !matches!(key.form, ValueForm::Map | ValueForm::MapOf | ValueForm::List);
        if !is_honoured || !is_leaf || exceptions.contains(key.path) {
            continue;
        }
        let places = pointers(&document, key.path);
        let changes = places.iter().any(|place| sent(&without(&document, place)) != whole);
        if !changes {
            ignored.push(format!("{} has no effect; it is at {places:?} in full.yaml", key.path));
        }
    }
    assert_eq!(ignored, [""; 0]);
}
