use serde_json::json;
use warren_types::{MountSource, RestartCondition, ServiceMode, TaskNetworkMode};

use super::*;

fn of(body: Value) -> Result<ReceivedSpec, Violations> {
    service("web", serde_json::from_value(body).unwrap(), Some("n1"), &ObjectIds::default())
}

#[test]
fn what_the_cli_sends_is_honoured() {
    let received = of(json!({
        "Image": "nginx:1.27", "Cmd": ["-g", "daemon off;"], "Entrypoint": "nginx", "Env": ["A=b"],
        "WorkingDir": "/srv", "User": "7", "Tty": true, "OpenStdin": true, "StdinOnce": true, "Labels": {"a": "b"},
        "StopTimeout": 3, "Volumes": {},
        "HostConfig": {
            "AutoRemove": true, "Binds": ["/srv:/data:ro", "cache:/cache"], "Tmpfs": {"/run": "size=1m"},
            "PortBindings": {"80/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8080"}], "53/udp": [{"HostPort": ""}]},
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}, "NetworkMode": "default",
            "Memory": 67_108_864, "NanoCpus": 500_000_000, "PidsLimit": 10, "ShmSize": 1_048_576,
            "StorageOpt": {"size": "2G"},
            "Privileged": true, "ExtraHosts": ["db:10.0.0.7"], "MemorySwappiness": -1, "CpuShares": 0,
            "Devices": [{"PathOnHost": "/dev/fuse", "PathInContainer": "", "CgroupPermissions": "rwm"}],
            "SecurityOpt": ["no-new-privileges"], "UsernsMode": "host", "ConsoleSize": [24, 80],
            "BlkioDeviceReadBps": [],
        },
        "NetworkingConfig": {"EndpointsConfig": {"default": {"IPAMConfig": {}}}},
    }))
    .unwrap();
    let spec = received.spec;
    assert_eq!((spec.mode, spec.name.as_str()), (ServiceMode::Replicated { replicas: 0 }, "web"));
    assert_eq!(spec.task.container_labels[ONE_OFF_LABEL], REMOVED_AT_END);
    assert!(spec.task.stdin && spec.task.container_labels.contains_key(STDIN_ONCE_LABEL));
    let task = spec.task;
    assert_eq!(task.command.unwrap(), ["nginx"]);
    assert_eq!(task.args.unwrap(), ["-g", "daemon off;"]);
    assert_eq!((task.restart.condition, task.tty, task.privileged), (RestartCondition::None, true, true));
    assert_eq!((task.stop_grace.as_secs(), task.shm_size), (3, Some(Bytes(1 << 20))));
    assert_eq!(task.storage_limit, Some(Bytes(2 << 30)));
    assert_eq!((task.limits.memory, task.limits.pids), (Some(Bytes(64 << 20)), Some(10)));
    assert_eq!((task.hosts[0].name.as_str(), task.devices[0].target.as_str()), ("db", "/dev/fuse"));
    assert_eq!(task.network, TaskNetworkMode::default());
    assert_eq!(task.user_namespace, Some(UserNamespace::Host));
    assert!(matches!(&task.mounts[0].source, MountSource::Bind { path, .. } if path == "/srv"));
    assert!(task.mounts[0].read_only && task.no_new_privileges == NoNewPrivileges::On);
    assert!(matches!(&task.mounts[1].source, MountSource::Volume { name, .. } if name == "cache"));
    assert!(matches!(&task.mounts[2].source, MountSource::Tmpfs { size: Some(Bytes(0x10_0000)), .. }));
    let ports: Vec<_> = spec.ports.iter().map(|port| (port.container_port, port.host_port)).collect();
    assert_eq!(ports, [(53, 0), (80, 8080)]);
    assert_eq!(spec.ports[1].host_ip, Some([127, 0, 0, 1].into()));
}

#[test]
fn node_is_the_own_one_unless_a_label_says_otherwise() {
    let constraints = |labels: Value| {
        let received = of(json!({"Image": "nginx", "Labels": labels})).unwrap();
        let constraints = received.spec.placement.constraints;
        constraints.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let own = constraints(json!({}));
    assert_eq!(own.len(), 1);
    assert!(own[0].contains("n1"), "{own:?}");
    assert!(constraints(json!({NODE_LABEL: "n2"}))[0].contains("n2"));
    assert_eq!(constraints(json!({NODE_LABEL: "any"})), [""; 0]);
}

#[test]
fn every_wrong_field_is_named_as_in_the_request() {
    let wrong = of(json!({
        "Image": "nginx", "WorkingDir": "relative",
        "HostConfig": {"PidMode": "host", "CapAdd": ["MAGIC"], "Dns": ["x"], "UsernsMode": "auto"},
    }));
    let mut paths: Vec<String> = wrong.unwrap_err().0.into_iter().map(|wrong| wrong.path).collect();
    paths.sort();
    assert_eq!(
        paths,
        ["HostConfig.CapAdd[0]", "HostConfig.Dns[0]", "HostConfig.PidMode", "HostConfig.UsernsMode"]
    );
    let wrong = of(json!({"Image": "nginx", "WorkingDir": "relative"})).unwrap_err();
    assert_eq!(wrong.0[0].path, "WorkingDir");
    for (options, path) in [
        (json!({"size": "1K"}), "HostConfig.StorageOpt.size"),
        (json!({"size": "much"}), "HostConfig.StorageOpt.size"),
        (json!({"inodes": "5"}), "HostConfig.StorageOpt.inodes"),
    ] {
        let wrong = of(json!({"Image": "nginx", "HostConfig": {"StorageOpt": options}})).unwrap_err();
        assert_eq!((wrong.0.len(), wrong.0[0].path.as_str()), (1, path));
    }
    let host = json!({"UsernsMode": "private", "Privileged": true});
    let wrong = of(json!({"Image": "nginx", "HostConfig": host})).unwrap_err();
    assert_eq!(wrong.0[0].path, "HostConfig.UsernsMode");
}

#[test]
fn security_options_are_those_of_docker() {
    let of = |options: Value| of(json!({"Image": "nginx", "HostConfig": {"SecurityOpt": options}}));
    let profile = r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#;
    let received = of(json!(["no-new-privileges:false", format!("seccomp={profile}")])).unwrap();
    let config = SeccompConfig::new(profile.as_bytes()).unwrap();
    assert_eq!(received.spec.task.no_new_privileges, NoNewPrivileges::Off);
    assert_eq!(received.spec.task.seccomp, Seccomp::Config(config.name.clone()));
    assert_eq!(received.profiles, [config]);
    for (option, expected) in [
        ("seccomp=unconfined", "unconfined"),
        ("seccomp:unconfined", "unconfined"),
        ("seccomp=builtin", "default"),
        ("seccomp=config/strict", "config/strict"),
    ] {
        let received = of(json!([option])).unwrap();
        assert_eq!(received.spec.task.seccomp.to_string(), expected, "{option}");
        assert!(received.profiles.is_empty());
        // The last one counts.
        let received = of(json!([format!("seccomp={profile}"), option])).unwrap();
        assert_eq!(received.spec.task.seccomp.to_string(), expected, "{option}");
        assert!(received.profiles.is_empty(), "{option}");
    }
    for (option, expected) in [
        ("apparmor=docker-default", "default"),
        ("apparmor:unconfined", "unconfined"),
        ("apparmor=web", "web"),
    ] {
        assert_eq!(of(json!([option])).unwrap().spec.task.apparmor.to_string(), expected, "{option}");
    }
    for (option, path) in [
        ("apparmor=", "HostConfig.SecurityOpt[0]"),
        ("seccomp=profile.json", "HostConfig.SecurityOpt[0]"),
        ("seccomp={}", "HostConfig.SecurityOpt[0].defaultAction"),
        ("label=disable", "HostConfig.SecurityOpt[0]"),
        ("no-new-privileges=yes", "HostConfig.SecurityOpt[0]"),
    ] {
        let wrong = of(json!([option])).unwrap_err();
        assert_eq!((wrong.0.len(), wrong.0[0].path.as_str()), (1, path), "{option}");
    }
}
