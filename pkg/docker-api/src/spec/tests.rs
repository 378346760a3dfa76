use proptest::prelude::*;
use serde_json::{Value, json};
use warren_types::Seccomp;
use warren_types::base64::encode_base64;
use warren_types::strategies::service_specs;

use super::*;

fn ids() -> ObjectIds {
    let pair = |(name, id): (&str, &str)| (name.to_owned(), id.to_owned());
    ObjectIds {
        secrets: [("db-password", "s1")].map(pair).into(),
        configs: [("app.conf", "c1")].map(pair).into(),
        networks: [("default", "n0"), ("back", "n1")].map(pair).into(),
    }
}

/// Every field that Docker's spec has and Warren honours.
fn full() -> Value {
    json!({
        "Name": "web",
        "Labels": {"tier": "front"},
        "TaskTemplate": {
            "ContainerSpec": {
                "Image": "nginx:1.27",
                "Labels": {"a": "b"},
                "Command": ["/entry"],
                "Args": ["-x", ""],
                "Hostname": "web-{{.Task.Slot}}",
                "Env": ["A=1", "B=x=y"],
                "Dir": "/srv",
                "User": "ann:staff",
                "Groups": ["video"],
                "Privileges": {
                    "NoNewPrivileges": true, "Seccomp": {"Mode": "unconfined"}, "AppArmor": {"Mode": "disabled"},
                },
                "StopSignal": "SIGQUIT",
                "TTY": true,
                "OpenStdin": true,
                "ReadOnly": true,
                "Mounts": [
                    {"Type": "bind", "Source": "/etc/x", "Target": "/x", "ReadOnly": true,
                     "BindOptions": {"Propagation": "rslave", "NonRecursive": true}},
                    {"Type": "volume", "Source": "data", "Target": "/data",
                     "VolumeOptions": {"NoCopy": true, "Subpath": "web"}},
                    {"Type": "tmpfs", "Target": "/tmp",
                     "TmpfsOptions": {"SizeBytes": 65536, "Mode": 1023, "Options": [["exec"]]}},
                ],
                "StopGracePeriod": 30_000_000_000u64,
                "Healthcheck": {
                    "Test": ["CMD-SHELL", "curl -f localhost"], "Interval": 5_000_000_000u64,
                    "Timeout": 1_000_000_000,
                    "Retries": 4, "StartPeriod": 60_000_000_000u64, "StartInterval": 2_000_000_000,
                },
                "Hosts": ["10.0.0.1 db", "10.0.0.2 cache"],
                "DNSConfig": {"Nameservers": ["1.1.1.1"], "Search": ["example.com"]},
                "Secrets": [{
                    "File": {"Name": "password", "UID": "0", "GID": "7", "Mode": 292},
                    "SecretID": "s1", "SecretName": "db-password",
                }],
                "Configs": [{
                    "File": {"Name": "/etc/app.conf", "UID": "", "GID": "", "Mode": 256},
                    "ConfigID": "c1", "ConfigName": "app.conf",
                }],
                "Isolation": "default",
                "Init": true,
                "Sysctls": {"net.core.somaxconn": "1024"},
                "CapabilityAdd": ["CAP_NET_ADMIN"],
                "CapabilityDrop": ["ALL"],
                "Ulimits": [{"Name": "nofile", "Soft": 1024, "Hard": -1}],
                "OomScoreAdj": 100,
            },
            "Resources": {
                "Limits": {"NanoCPUs": 1_500_000_000, "MemoryBytes": 268_435_456, "Pids": 100},
                "Reservations": {"NanoCPUs": 250_000_000, "MemoryBytes": 67_108_864},
            },
            "RestartPolicy": {
                "Condition": "on-failure", "Delay": 5_000_000_000u64, "MaxAttempts": 5, "Window": 120_000_000_000u64,
            },
            "Placement": {
                "Constraints": ["node.role==manager", "node.hostname!=n2", "node.platform.arch==amd64"],
                "Preferences": [{"Spread": {"SpreadDescriptor": "engine.labels.zone"}}],
                "MaxReplicas": 2,
            },
            "ForceUpdate": 0,
            "Runtime": "container",
            "Networks": [{"Target": "n1", "Aliases": ["www"]}, {"Target": "n0"}],
            "LogDriver": {"Name": "json-file", "Options": {"max-size": "10m", "max-file": "3"}},
        },
        "Mode": {"Replicated": {"Replicas": 3}},
        "UpdateConfig": {
            "Parallelism": 2, "Delay": 1_000_000_000, "FailureAction": "pause", "Monitor": 4_000_000_000u64,
            "MaxFailureRatio": 0.25, "Order": "stop-first",
        },
        "RollbackConfig": {
            "Parallelism": 0, "Delay": 0, "FailureAction": "continue", "Monitor": 3_000_000_000u64,
            "MaxFailureRatio": 0.0, "Order": "stop-first",
        },
        "EndpointSpec": {
            "Mode": "vip",
            "Ports": [
                {"Protocol": "tcp", "TargetPort": 80, "PublishedPort": 8080, "PublishMode": "ingress"},
                {"Protocol": "udp", "TargetPort": 53, "PublishedPort": 5353, "PublishMode": "host"},
            ],
        },
    })
}

fn received(json: Value) -> Result<ReceivedSpec, String> {
    from_docker(serde_json::from_value(json).unwrap(), &ids()).map_err(|wrong| wrong.to_string())
}

#[test]
fn every_field_is_shown_as_it_was_sent() {
    let received = received(full()).unwrap();
    assert_eq!(received.warnings, Vec::<String>::new());
    for defaults in [DefaultFields::Shown, DefaultFields::LeftOut] {
        assert_eq!(serde_json::to_value(to_docker(&received.spec, &ids(), defaults)).unwrap(), full());
    }
}

#[test]
fn minimal_spec_has_the_defaults_of_warren() {
    let json = json!({
        "Name": "web", "Labels": null, "Networks": null, "UnknownField": {"x": 1},
        "TaskTemplate": {"ContainerSpec": {"Image": "nginx"}, "Placement": null},
    });
    let expected = ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("nginx".parse().unwrap()));
    assert_eq!(received(json).unwrap().spec, expected);
}

#[test]
fn each_field_that_is_left_out_is_read_as_its_default() {
    let default = ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("nginx".parse().unwrap()));
    let show = |defaults| serde_json::to_value(to_docker(&default, &ids(), defaults)).unwrap();
    let (shown, short) = (show(DefaultFields::Shown), show(DefaultFields::LeftOut));
    let without = |json: &Value, parent: &str, field: &str| {
        let mut json = json.clone();
        let object = json.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        let removed = object.remove(field);
        (json, removed)
    };
    let mut rest = shown.clone();
    for (parent, field) in [
        ("", "UpdateConfig"),
        ("", "RollbackConfig"),
        ("/TaskTemplate", "RestartPolicy"),
        ("/TaskTemplate/ContainerSpec", "StopGracePeriod"),
        ("/TaskTemplate/ContainerSpec", "Init"),
    ] {
        let (json, removed) = without(&shown, parent, field);
        assert!(removed.is_some(), "{field} is not shown");
        assert_eq!(received(json).unwrap().spec, default, "{field}");
        (rest, _) = without(&rest, parent, field);
    }
    assert_eq!(rest, short);
}

/// `full` with a value at a path.
fn with(path: &str, value: Value) -> Value {
    let mut json = full();
    *json.pointer_mut(path).unwrap_or_else(|| panic!("{path} is not in the spec")) = value;
    json
}

#[test]
fn each_unsupported_field_is_refused_with_its_path() {
    let container = "/TaskTemplate/ContainerSpec";
    for (parent, field, value) in [
        ("/TaskTemplate", "PluginSpec", json!({"Name": "x"})),
        ("/TaskTemplate", "Runtime", json!("plugin")),
        ("/TaskTemplate/Resources/Reservations", "GenericResources", json!([{"NamedResourceSpec": {}}])),
        ("/TaskTemplate/Placement", "Platforms", json!([{"OS": "linux"}])),
        ("/TaskTemplate/LogDriver", "Name", json!("syslog")),
        (container, "Isolation", json!("hyperv")),
        ("/TaskTemplate/ContainerSpec/Privileges", "CredentialSpec", json!({"File": "x"})),
        ("/TaskTemplate/ContainerSpec/Privileges", "SELinuxContext", json!({"Disable": true})),
        ("/TaskTemplate/ContainerSpec/DNSConfig", "Options", json!(["ndots:1"])),
        ("/Mode", "ReplicatedJob", json!({"MaxConcurrent": 1})),
        (container, "StopGracePeriod", json!(1)),
        (container, "StopSignal", json!("SIGNOPE")),
        ("/TaskTemplate/Resources/Limits", "NanoCPUs", json!(1)),
        ("/TaskTemplate/Resources/Limits", "MemoryBytes", json!(1)),
        ("/UpdateConfig", "MaxFailureRatio", json!(2.0)),
        ("/UpdateConfig", "Order", json!("never")),
    ] {
        let mut json = full();
        json.pointer_mut(parent).unwrap()[field] = value;
        let error = received(json).unwrap_err();
        let path = format!("{}.{field}", &parent[1..]).replace('/', ".");
        assert!(error.starts_with(&path), "{path}: {error}");
    }
    for (path, value, expected) in [
        ("/Name", json!("No Name"), "Name: "),
        ("/TaskTemplate/ContainerSpec/Image", json!(""), "TaskTemplate.ContainerSpec.Image: "),
        ("/TaskTemplate/ContainerSpec/Env/0", json!("A"), "TaskTemplate.ContainerSpec.Env[0]: "),
        (
            "/TaskTemplate/ContainerSpec/Mounts/0/Type",
            json!("npipe"),
            "TaskTemplate.ContainerSpec.Mounts[0].",
        ),
        (
            "/TaskTemplate/ContainerSpec/Mounts/1/Source",
            json!(""),
            "TaskTemplate.ContainerSpec.Mounts[1].Source: ",
        ),
        ("/TaskTemplate/ContainerSpec/Hosts/0", json!("::1 db"), "TaskTemplate.ContainerSpec.Hosts[0]: "),
        (
            "/TaskTemplate/ContainerSpec/Healthcheck/Test",
            json!([]),
            "TaskTemplate.ContainerSpec.Healthcheck.Test: ",
        ),
        ("/EndpointSpec/Ports/0/TargetPort", json!(70_000), "EndpointSpec.Ports[0].TargetPort: "),
        ("/TaskTemplate/Placement/Constraints/0", json!("x"), "TaskTemplate.Placement.Constraints[0]: "),
    ] {
        let error = received(with(path, value)).unwrap_err();
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let mut json = full();
    json["TaskTemplate"]["ContainerSpec"]["Mounts"][0]["BindOptions"]["CreateMountpoint"] = json!(true);
    let warnings = received(json).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("TaskTemplate.ContainerSpec.Mounts[0].BindOptions.CreateMountpoint: "));
}

#[test]
fn custom_seccomp_profile_becomes_a_config() {
    let path = "/TaskTemplate/ContainerSpec/Privileges/Seccomp";
    let json = br#"{"defaultAction": "SCMP_ACT_ALLOW"}"#;
    let custom = |profile: &[u8]| json!({"Mode": "custom", "Profile": encode_base64(profile)});
    let received = self::received(with(path, custom(json))).unwrap();
    let config = SeccompConfig::new(json).unwrap();
    assert_eq!(received.spec.task.seccomp, Seccomp::Config(config.name.clone()));
    assert_eq!(received.profiles, std::slice::from_ref(&config));
    // As it is shown.
    let shown = to_docker(&received.spec, &ids(), DefaultFields::Shown);
    let again = from_docker(shown, &ids()).unwrap();
    assert_eq!((again.spec, again.profiles), (received.spec, Vec::new()));
    let at = "TaskTemplate.ContainerSpec.Privileges.Seccomp.";
    for (seccomp, expected) in [
        (custom(b"{}"), "Profile.defaultAction: is missing"),
        (custom(b""), "Profile: is not a seccomp profile"),
        (json!({"Mode": "custom", "Profile": "?"}), "Profile: is not base64"),
        (json!({"Mode": "unconfined", "Profile": "e30="}), "Profile: is only for the mode custom"),
        (json!({"Mode": "strict"}), "Mode: \"strict\" is not a mode"),
    ] {
        let error = self::received(with(path, seccomp)).unwrap_err();
        assert!(error.starts_with(&format!("{at}{expected}")), "{expected}: {error}");
    }
    let path = "/TaskTemplate/ContainerSpec/Privileges/AppArmor/Mode";
    let error = self::received(with(path, json!("web"))).unwrap_err();
    assert!(error.contains("Privileges.AppArmor.Mode: \"web\" is not a mode"), "{error}");
}

#[test]
fn volumes_that_mounts_describe_are_created() {
    let options =
        json!({"Labels": {"com.docker.stack.namespace": "shop"}, "DriverConfig": {"Name": "local"}});
    let received = received(with("/TaskTemplate/ContainerSpec/Mounts/1/VolumeOptions", options)).unwrap();
    let labels = [("com.docker.stack.namespace".to_owned(), "shop".to_owned())].into();
    let volume =
        MountedVolume { name: "data".into(), driver: "local".into(), options: Default::default(), labels };
    assert_eq!(received.volumes, [volume]);
}

#[test]
fn update_keeps_what_docker_cannot_say() {
    let mut before = received(full()).unwrap().spec;
    before.ports[0].prefer_local = true;
    before.placement.tolerations = vec!["dedicated=gpu:NoSchedule".parse().unwrap()];
    before.task.allow_metadata = true;
    before.task.secrets[0].template = true;
    let mut docker = serde_json::to_value(to_docker(&before, &ids(), DefaultFields::Shown)).unwrap();
    docker["TaskTemplate"]["ContainerSpec"]["Image"] = json!("nginx:1.28");
    docker["Mode"]["Replicated"]["Replicas"] = json!(5);
    docker["EndpointSpec"]["Ports"].as_array_mut().unwrap().remove(1);
    docker["TaskTemplate"]["Placement"] = json!({});
    let updated = updated(&before, serde_json::from_value(docker).unwrap(), &ids()).unwrap();
    let mut expected = before.clone();
    expected.task.image = "nginx:1.28".parse().unwrap();
    expected.mode = ServiceMode::Replicated { replicas: 5 };
    expected.ports.truncate(1);
    expected.placement.constraints.clear();
    expected.placement.preferences.clear();
    expected.placement.max_per_node = None;
    assert_eq!(updated.spec, expected);
    assert!(!updated.force);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn sending_back_what_was_shown_changes_nothing(spec in service_specs()) {
        for defaults in [DefaultFields::Shown, DefaultFields::LeftOut] {
            let shown = to_docker(&spec, &ids(), defaults);
            let updated = updated(&spec, shown, &ids());
            let updated = updated.map_err(|wrong| TestCaseError::fail(wrong.to_string()))?;
            prop_assert_eq!(&updated.spec, &spec);
            prop_assert!(updated.warnings.is_empty() && updated.volumes.is_empty() && !updated.force);
        }
    }

    #[test]
    fn what_docker_can_say_is_the_same_both_ways(spec in service_specs()) {
        let receive = |spec: &ServiceSpec| {
            let [said, without_defaults] = [DefaultFields::Shown, DefaultFields::LeftOut].map(|defaults| {
                let wire = serde_json::to_value(to_docker(spec, &ids(), defaults)).unwrap();
                read(serde_json::from_value(wire).unwrap(), &ids()).map(|received| received.spec)
            });
            prop_assert_eq!(&said, &without_defaults);
            said.map_err(|wrong| TestCaseError::fail(wrong.to_string()))
        };
        let said = receive(&spec)?;
        prop_assert_eq!(receive(&said)?, said);
    }
}
