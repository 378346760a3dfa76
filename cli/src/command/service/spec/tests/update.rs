//! Changes of a spec.

use serde_json::json;

use super::*;

#[test]
fn update_changes_only_given_fields() {
    check(EVERY_KIND, &[], &[]);
    check(EVERY_KIND, &["--image=nginx:2"], &[("/task/image", json!("nginx:2"))]);
    check(EVERY_KIND, &["--replicas=7"], &[("/mode/replicated/replicas", json!(7))]);
    check(EVERY_KIND, &["--tty=false"], &[("/task/tty", json!(false))]);
    check(&[], &["--tty"], &[("/task/tty", json!(true))]);
    check(&[], &["--stdin"], &[("/task/stdin", json!(true))]);
    check(&[], &["--user-namespace=private"], &[("/task/userNamespace", json!("private"))]);
    check(&[], &["--seccomp=config/strict"], &[("/task/seccomp", json!("config/strict"))]);
    check(&[], &["--security-opt=seccomp=unconfined"], &[("/task/seccomp", json!("unconfined"))]);
    check(&[], &["--security-opt=no-new-privileges:false"], &[("/task/noNewPrivileges", json!(false))]);
    check(EVERY_KIND, &["--memory=1Gi"], &[("/task/limits/memory", json!("1GiB"))]);
    check(EVERY_KIND, &["--restart-max=0"], &[("/task/restart/max", json!(0))]);
    check(EVERY_KIND, &["--", "a"], &[("/task/args", json!(["a"]))]);
    check(EVERY_KIND, &["--command=a", "--command="], &[("/task/command", json!(["a", ""]))]);
}

#[test]
fn an_empty_value_is_the_default_again() {
    let emptied = [
        "--tty=false",
        "--stdin=false",
        "--init=false",
        "--post-start=",
        "--pre-stop=",
        "--oom-score-adj=",
        "--privileged=false",
        "--no-new-privileges=",
        "--read-only=false",
        "--replicas=1",
        "--label-rm=app",
        "--env-rm=A",
        "--constraint-rm=node.labels.zone in (a, b)",
        "--toleration-rm=dedicated=gpu:NoSchedule",
        "--toleration-rm=*",
        "--prefer-rm=spread=node.labels.zone",
        "--placement-pref-rm=spread=engine.labels.rack",
        "--publish-rm=8080",
        "--publish-on-rm=node.labels.edge == true",
        "--publish-rm=127.0.0.1:8443:443",
        "--network-rm=front",
        "--alias-rm=www",
        "--dns-rm=192.0.2.53",
        "--dns-search-rm=example.org",
        "--endpoint-mode=vip",
        "--host-rm=db",
        "--group-rm=audio",
        "--mount-rm=/tmp/",
        "--mount-rm=/data",
        "--volume-rm=data",
        "--secret-rm=db",
        "--secret-rm=/etc/key",
        "--config-rm=/site",
        "--no-health",
        "--device-rm=/dev/fuse",
        "--ulimit-rm=nofile",
        "--sysctl-rm=net.core.somaxconn",
        "--container-label-rm=tier",
        "--cap-add=MKNOD",
        "--cap-drop=NET_ADMIN",
    ];
    let resets: Vec<String> = EVERY_KIND.iter().filter_map(|flag| reset_of(flag)).collect();
    let mut changes = emptied.to_vec();
    // The whole check is removed.
    changes.extend(resets.iter().map(String::as_str).filter(|reset| !reset.starts_with("--health")));
    let spec = changed(&created(EVERY_KIND).unwrap(), &changes).unwrap();
    assert_eq!(spec, created(&[]).unwrap());
    check(EVERY_KIND, &["--workdir", ""], &[("/task/workdir", json!(null))]);
    assert!(service(&["update", "web", "--image="]).is_ok());
    let wrong = changed(&spec, &["--image="]).unwrap_err().to_string();
    assert!(wrong.starts_with("spec.task.image: \"\" is not an image reference"), "{wrong}");
}

#[test]
fn list_removals_precede_additions() {
    let env = &["-eA=1", "-eB=2", "-eC=3"];
    let var = |name: &str, value: &str| json!({"name": name, "value": value});
    let expected = json!([var("B", "9"), var("C", "3"), var("D", "4")]);
    check(env, &["--env-rm=A", "--env-add=D=4", "--env-add=B=9"], &[("/task/env", expected)]);
    let desired = json!([var("B", "2"), var("C", "3"), var("A", "9")]);
    let moved = changed(&created(env).unwrap(), &["--env-rm=A", "--env-add=A=9"]).unwrap();
    assert_eq!(serde_json::to_value(&moved).unwrap()["task"]["env"], desired);
    check(env, &["--env-rm=X"], &[]);
    check(env, &["--env-rm=A", "--env-rm=B", "--env-rm=C"], &[("/task/env", json!(null))]);
    let labels = json!({"a": "2", "b": "1"});
    check(&["--label=a=1"], &["--label-add=a=2", "--label-add=b=1"], &[("/labels", labels)]);
    let labels = json!({"a": "2", "b": "1", "c": "3"});
    check(
        &["--container-label=a=1", "--container-label=c=3", "--container-label=d=4"],
        &["--container-label=a=2", "--container-label-add=b=1", "--container-label-rm=d"],
        &[("/task/containerLabels", labels)],
    );
    check(&["--group=a"], &["--group-add=a"], &[]);
    check(
        &["--ulimit=nofile=1"],
        &["--ulimit-add=nofile=2"],
        &[("/task/ulimits", json!([{"name": "nofile", "soft": "2", "hard": "2"}]))],
    );
    let hosts = &["--host=db:10.0.0.1", "--host=db:10.0.0.2"];
    let one = json!([{"name": "db", "address": "10.0.0.2"}]);
    check(hosts, &["--host-rm=db:10.0.0.1"], &[("/task/hosts", one)]);
    let mounted = |spec: &ServiceSpec| spec.task.mounts.iter().map(|m| m.target.clone()).collect::<Vec<_>>();
    let spec = created(&["--tmpfs=/a", "--bind=/x:/b"]).unwrap();
    let spec = changed(&spec, &["--bind-add=/y:/a", "--tmpfs-add=/c"]).unwrap();
    assert_eq!(mounted(&spec), ["/a", "/b", "/c"]);
    assert!(matches!(spec.task.mounts[0].source, warren_types::MountSource::Bind { .. }));
}

#[test]
fn added_port_replaces_that_of_its_host_port() {
    let spec = created(&["-p8080:80"]).unwrap();
    let twice = changed(&spec, &["--publish=9:80", "--publish=9:81"]).unwrap_err().to_string();
    assert_eq!(twice, "spec.ports[2].hostPort: host port 9 is already published by ports[1]");
    for flags in [&["--publish-add=8080:81"][..], &["-p8080:81"], &["--publish-rm=8080", "--publish=8080:81"]]
    {
        let moved = changed(&spec, flags).unwrap();
        assert_eq!(moved.ports.iter().map(ToString::to_string).collect::<Vec<_>>(), ["8080->81/tcp"]);
    }
    assert_eq!(changed(&spec, &["--publish-add=8080:80"]).unwrap(), spec);
}

#[test]
fn networks_are_added_and_removed() {
    let network = |name: &str, aliases: &[&str]| match aliases {
        [] => json!({"network": name}),
        _ => json!({"network": name, "aliases": aliases}),
    };
    let networks = |networks: &[Value]| json!({"networks": networks});
    let field = "/task/network";
    let both = networks(&[network("default", &[]), network("front", &["api"])]);
    check(&[], &["--network-add=front,alias=api"], &[(field, both)]);
    check(&["--network=front"], &["--network-rm=front", "--network=default"], &[(field, Value::Null)]);
    check(&["--network=front"], &["--network-add=host"], &[(field, json!("host"))]);
    check(&["--network=host"], &["--network-add=none"], &[(field, json!("none"))]);
    check(&["--network=none"], &["--network-add=front"], &[(field, networks(&[network("front", &[])]))]);
    let named = &["--network=front,alias=a", "--network=back"];
    let renamed = networks(&[network("front", &["b"]), network("back", &["b"])]);
    check(named, &["--alias-rm=a", "--alias-add=b"], &[(field, renamed)]);
    check(&["--dns=192.0.2.1"], &["--dns-add=192.0.2.1"], &[]);
    let alone = changed(&created(named).unwrap(), &["--network-rm=front", "--network-rm=back"]).unwrap_err();
    assert_eq!(alone.to_string(), "spec.task.network.networks: is empty; give a network, host or none");
}

#[test]
fn dropped_capability_returns_to_default_first() {
    let names = |spec: &ServiceSpec| {
        let text = |list: &[Capability]| list.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(",");
        (text(&spec.task.cap_add), text(&spec.task.cap_drop))
    };
    let check = |before: &[&str], update: &[&str], add: &str, drop: &str| {
        let new = changed(&created(before).unwrap(), update).unwrap();
        assert_eq!(names(&new), (add.to_owned(), drop.to_owned()), "{before:?} {update:?}");
    };
    check(&[], &["--cap-add=KILL"], "KILL", "");
    check(&["--cap-drop=KILL"], &["--cap-add=KILL"], "", "");
    check(&["--cap-add=KILL"], &["--cap-add=KILL"], "KILL", "");
    check(&["--cap-add=KILL"], &["--cap-drop=KILL"], "", "");
    check(&["--cap-drop=ALL"], &["--cap-add=CHOWN"], "CHOWN", "ALL");
    let wrong = changed(&created(&[]).unwrap(), &["--cap-add=KILL", "--cap-drop=KILL"]).unwrap_err();
    assert_eq!(wrong.0[0].path, "spec.task.capAdd");
}

#[test]
fn contradictory_update_is_refused() {
    let refused = |before: &[&str], update: &[&str], expected: &str| {
        let wrong = changed(&created(before).unwrap(), update).unwrap_err().to_string();
        assert!(wrong.contains(expected), "{wrong}");
    };
    refused(&["--mode=global"], &["--replicas=2"], "spec.mode: a global service has one task per node");
    refused(&[], &["--env-add=A=1", "--env-add=A=2"], "spec.task.env[1].name: A is given twice");
    refused(&[], &["--label-add=a=1", "--label-add=a=2"], "spec.labels[\"a\"]: is given twice");
    refused(&["--memory=64Mi"], &["--reserve-memory=65Mi"], "spec.task.reservations.memory: is more than");
    // What kind of service it is, and what it is called, stays.
    assert!(service(&["update", "web", "--mode=global"]).is_err());
    assert!(service(&["update", "web", "--name=other"]).is_err());
    assert!(service(&["update", "web", "--mount-add=/a"]).is_err());
}
