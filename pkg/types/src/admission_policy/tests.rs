use super::*;
use crate::spec::{Device, Mount};
use crate::{Bytes, MilliCpu, ServiceMode};

fn spec() -> ServiceSpec {
    ServiceSpec::new("web".parse().unwrap(), TaskSpec::new("nginx:1.27".parse().unwrap()))
}

fn bind(path: &str) -> Mount {
    let source = MountSource::Bind { path: path.into(), propagation: Default::default(), recursive: false };
    Mount { target: "/srv".into(), source, read_only: true }
}

fn device(path: &str) -> Device {
    Device { source: path.into(), target: path.into(), access: "r".parse().unwrap() }
}

#[test]
fn each_rule_allows_what_the_default_refuses() {
    type Case = (fn(&mut ServiceSpec), &'static str, &'static str, fn(&mut AdmissionRules));
    let cases: [Case; 13] = [
        (|s| s.task.privileged = true, "task.privileged", "privileged", |r| r.privileged = true),
        (
            |s| s.task.cap_add = vec!["NET_ADMIN".parse().unwrap()],
            "task.capAdd[0]",
            "capAdd",
            |r| r.cap_add = vec!["NET_ADMIN".parse().unwrap()],
        ),
        (
            |s| s.task.seccomp = Seccomp::Unconfined,
            "task.seccomp",
            "unconfinedSeccomp",
            |r| r.unconfined_seccomp = true,
        ),
        (
            |s| {
                s.task.seccomp = "config/profile".parse().unwrap();
                s.task.no_new_privileges = NoNewPrivileges::On;
            },
            "task.seccomp",
            "unconfinedSeccomp",
            |r| r.unconfined_seccomp = true,
        ),
        (
            |s| s.task.seccomp = "config/profile".parse().unwrap(),
            "task.seccomp",
            "privileged",
            |r| r.privileged = true,
        ),
        (
            |s| s.task.apparmor = AppArmor::Unconfined,
            "task.apparmor",
            "unconfinedApparmor",
            |r| r.unconfined_apparmor = true,
        ),
        (
            |s| s.task.apparmor = "web".parse().unwrap(),
            "task.apparmor",
            "unconfinedApparmor",
            |r| r.unconfined_apparmor = true,
        ),
        (
            |s| s.task.network = TaskNetworkMode::Host,
            "task.network",
            "hostNetwork",
            |r| r.host_network = true,
        ),
        (|s| s.task.allow_metadata = true, "task.allowMetadata", "metadata", |r| r.metadata = true),
        (|s| s.bootstrap = true, "bootstrap", "bootstrap", |r| r.bootstrap = true),
        (
            |s| s.task.oom_score_adj = Some(-5),
            "task.oomScoreAdj",
            "minOomScoreAdj",
            |r| r.min_oom_score_adj = -5,
        ),
        (
            |s| s.task.devices = vec![device("/dev/kvm")],
            "task.devices[0]",
            "devices",
            |r| r.devices = vec!["/dev/kvm".into()],
        ),
        (
            |s| s.task.mounts = vec![bind("/srv/data")],
            "task.mounts[0]",
            "hostBinds",
            |r| r.host_binds = vec!["/srv/".into()],
        ),
    ];
    let default = AdmissionPolicy::default();
    assert!(default.violations(UserRole::Operator, &spec()).0.is_empty());
    assert!(default.weaker_rules().is_empty() && default.validate().0.is_empty());
    for (set, path, rule, allow) in cases {
        let mut spec = spec();
        set(&mut spec);
        for role in [UserRole::Viewer, UserRole::Operator] {
            let found = default.violations(role, &spec);
            assert_eq!(found.0.len(), 1, "{found}");
            assert_eq!(found.0[0].path, path);
            assert!(found.0[0].message.ends_with(&format!("which operator.{rule} does not allow")));
            assert_eq!(default.privilege_violations(role, &spec), found);
        }
        assert!(default.violations(UserRole::Admin, &spec).0.is_empty());
        let mut policy = default.clone();
        allow(&mut policy.operator);
        assert_eq!(policy.violations(UserRole::Operator, &spec), Violations::default());
        assert_eq!(policy.weaker_rules(), [format!("operator.{rule}")]);
        assert_eq!(policy.validate(), Violations::default());
    }
}

#[test]
fn own_profile_that_runs_before_capabilities_are_dropped_is_as_privileged() {
    let mut policy = AdmissionPolicy::default();
    policy.operator.unconfined_seccomp = true;
    let mut spec = spec();
    spec.task.seccomp = "config/profile".parse().unwrap();
    for (asked, is_admitted) in
        [(NoNewPrivileges::On, true), (NoNewPrivileges::Default, false), (NoNewPrivileges::Off, false)]
    {
        spec.task.no_new_privileges = asked;
        let found = policy.privilege_violations(UserRole::Operator, &spec);
        assert_eq!(found.0.is_empty(), is_admitted, "{found}");
        let expected = "is config/profile without noNewPrivileges, which operator.privileged does not allow";
        assert!(found.0.iter().all(|wrong| wrong.message == expected), "{found}");
    }
}

#[test]
fn paths_are_compared_by_component() {
    for (path, above, expected) in [
        ("/srv", "/srv", true),
        ("/srv/", "/srv", true),
        ("//srv/./data", "/srv//", true),
        ("/srv/data", "/", true),
        ("/srvdata", "/srv", false),
        ("/", "/srv", false),
        ("/srv", "/srv/data", false),
        ("/srv/../etc", "/srv", false),
        ("/srv/..", "/", false),
    ] {
        assert_eq!(is_below(path, above), expected, "{path} {above}");
    }
}

#[test]
fn all_capabilities_are_only_allowed_by_all() {
    let mut policy = AdmissionPolicy::default();
    let mut spec = spec();
    spec.task.cap_add = vec!["CHOWN".parse().unwrap(), Capability::ALL];
    policy.operator.cap_add = vec!["CHOWN".parse().unwrap()];
    let found = policy.violations(UserRole::Operator, &spec).to_string();
    assert_eq!(found, "task.capAdd[1]: is ALL, which operator.capAdd does not allow");
    policy.operator.cap_add = vec![Capability::ALL];
    assert_eq!(policy.violations(UserRole::Operator, &spec), Violations::default());
}

#[test]
fn registries_are_compared_with_the_whole_reference() {
    for (image, registry, expected) in [
        ("nginx", "docker.io", true),
        ("nginx:1", "index.docker.io", true),
        ("nginx", "docker.io/library", true),
        ("team/app", "docker.io/library", false),
        ("docker.io/nginx", "docker.io/library/nginx", true),
        ("ghcr.io/acme/app:1", "ghcr.io", true),
        ("GHCR.io/acme/app:1", "ghcr.io/acme", true),
        ("ghcr.io/acme-other/app", "ghcr.io/acme", false),
        ("docker.io/nginx", "docker.io/nginx", true),
        ("nginx:1", "index.docker.io/nginx", true),
        ("nginx/app", "docker.io/nginx", true),
        ("nginx-other", "docker.io/nginx", false),
        ("team/nginx", "docker.io/nginx", false),
        ("library/team/app", "docker.io/team/app", false),
        ("ghcr.io/library/nginx", "ghcr.io/nginx", false),
        ("Docker.io/nginx", "docker.io/library/nginx", true),
        ("INDEX.docker.io/team/app:1", "docker.io/team", true),
        ("registry-1.docker.io/library/nginx", "docker.io/nginx", true),
        ("ghcr.io:443/acme/app", "ghcr.io", true),
        ("ghcr.io/acme/app", "GHCR.io:443/acme", true),
        ("ghcr.io:5000/acme/app", "ghcr.io", false),
        ("ghcr.io.example.com/acme/app", "ghcr.io", false),
        ("acme/app", "ghcr.io/acme", false),
        ("localhost:5000/app", "localhost:5000", true),
    ] {
        let (mut policy, mut spec) = (AdmissionPolicy::default(), spec());
        policy.operator.registries = vec!["a.example.com".into(), registry.into()];
        spec.task.image = image.parse().unwrap();
        let found = policy.violations(UserRole::Operator, &spec).0;
        assert_eq!(found.is_empty(), expected, "{image} {registry}");
        assert!(found.iter().all(|wrong| wrong.path == "task.image"), "{found:?}");
        // They say what may be started, and give no power over nodes.
        assert_eq!(policy.privilege_violations(UserRole::Operator, &spec), Violations::default());
    }
}

#[test]
fn amounts_have_to_be_set_and_within_the_rules() {
    let (mut policy, mut spec) = (AdmissionPolicy::default(), spec());
    let (cpu, memory) = (Some(MilliCpu(2000)), Some(Bytes(1 << 30)));
    policy.operator.limits = Limits { cpu, memory, pids: Some(100) };
    policy.operator.max_replicas = Some(3);
    spec.mode = ServiceMode::Replicated { replicas: 4 };
    let found = policy.violations(UserRole::Operator, &spec);
    assert_eq!(
        found.to_string(),
        "task.limits.cpu: is not set and may be more than 2, which operator.limits.cpu does not allow; \
         task.limits.memory: is not set and may be more than 1GiB, which operator.limits.memory does not allow; \
         task.limits.pids: is 4096, more than 100, which operator.limits.pids does not allow; \
         mode.replicated.replicas: is 4, more than 3, which operator.maxReplicas does not allow"
    );
    assert_eq!(policy.privilege_violations(UserRole::Operator, &spec), Violations::default());
    spec.task.limits = policy.operator.limits;
    spec.mode = ServiceMode::Replicated { replicas: 3 };
    assert_eq!(policy.violations(UserRole::Operator, &spec), Violations::default());
    spec.task.limits.memory = Some(Bytes((1 << 30) + 1));
    spec.mode = ServiceMode::Global;
    let found = policy.violations(UserRole::Operator, &spec).0;
    assert_eq!((found.len(), found[0].path.as_str()), (1, "task.limits.memory"));
    assert!(policy.weaker_rules().is_empty());
}

#[test]
fn wrong_rules_are_refused_with_their_paths() {
    let limits = Limits { cpu: None, memory: Some(Bytes(1)), pids: Some(0) };
    let registries = ["acme", "ghcr.io/", "ghcr.io/a:1", "ghcr.io/Acme", "", "ghcr.io:5000/acme/team"];
    let operator = AdmissionRules {
        host_binds: vec!["/srv".into(), "srv".into(), "/srv/../etc".into()],
        devices: vec![format!("/{}", "d".repeat(MAX_PATH))],
        min_oom_score_adj: 1,
        registries: registries.map(str::to_owned).into(),
        limits,
        ..AdmissionRules::default()
    };
    let found = AdmissionPolicy { operator, ..Default::default() }.validate().0;
    let paths: Vec<&str> = found.iter().map(|wrong| wrong.path.as_str()).collect();
    let expected = [
        "operator.hostBinds[1]",
        "operator.hostBinds[2]",
        "operator.devices[0]",
        "operator.minOomScoreAdj",
        "operator.registries[0]",
        "operator.registries[1]",
        "operator.registries[2]",
        "operator.registries[3]",
        "operator.registries[4]",
        "operator.limits.memory",
        "operator.limits.pids",
    ];
    assert_eq!(paths, expected);
    let many = AdmissionRules { host_binds: vec!["/a".into(); 65], ..AdmissionRules::default() };
    let found = AdmissionPolicy { operator: many, ..Default::default() }.validate().to_string();
    assert_eq!(found, "operator.hostBinds: 65 are more than 64");
}

#[test]
fn signature_rules_match_registries_for_everybody() {
    let key = SignatureKey::Ed25519([1; 32]);
    let rule = |registry: &str, count| SignatureRule { registry: registry.into(), keys: vec![key; count] };
    let signatures = vec![rule("ghcr.io/acme", 1), rule("docker.io", 1), rule("ghcr.io", 1)];
    let policy = AdmissionPolicy { signatures, ..AdmissionPolicy::default() };
    for (image, expected) in [
        ("ghcr.io/acme/app:1", &[0, 2][..]),
        ("GHCR.io/acme-other/app", &[2]),
        ("ghcr.io:443/acme/app", &[0, 2]),
        ("nginx", &[1]),
        ("INDEX.docker.io/team/app:1", &[1]),
        ("localhost:5000/app", &[]),
    ] {
        let found: Vec<usize> = policy.signature_rules(&image.parse().unwrap()).map(|(i, _)| i).collect();
        assert_eq!(found, expected, "{image}");
    }
    assert_eq!(policy.validate(), Violations::default());
    let signatures = vec![rule("acme", 1), rule("ghcr.io", 0), rule("ghcr.io", 9)];
    let found = AdmissionPolicy { signatures, ..AdmissionPolicy::default() }.validate();
    assert_eq!(
        found.to_string(),
        "signatures[0].registry: \"acme\" is not a registry; give HOST[:PORT][/REPOSITORY]; \
         signatures[1].keys: is empty; give a public key; signatures[2].keys: 9 are more than 8"
    );
    let many = AdmissionPolicy { signatures: vec![rule("ghcr.io", 1); 17], ..AdmissionPolicy::default() };
    assert_eq!(many.validate().to_string(), "signatures: 17 are more than 16");
}
