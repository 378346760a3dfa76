//! Allowed dependencies between crates, checked on the direct dependencies from `cargo metadata`.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::source::root;

/// A workspace crate and the dependencies in its Cargo.toml.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkspaceCrate {
    /// Its name.
    pub name: String,
    /// Its directory from the repository's root.
    pub directory: String,
    /// Normal and build dependencies.
    pub dependencies: Vec<String>,
    /// Dev-dependencies.
    pub dev_dependencies: Vec<String>,
}

impl WorkspaceCrate {
    /// The crates under `tests/` never ship.
    fn is_test_crate(&self) -> bool {
        self.directory.starts_with("tests/")
    }
}

/// Pure crates: no input but arguments, no output but results.
pub const PURE: [&str; 7] = [
    "warren-types",
    "warren-core",
    "warren-consensus",
    "warren-replica",
    "warren-task",
    "warren-compose",
    "warren-documents",
];

/// External dependencies that pure crates may use: data structures, errors, serialization of types, and
/// strategies for property tests.
const PURE_MAY_USE: [&str; 10] = [
    "bytes",
    "humantime",
    "imbl",
    "ipnet",
    "proptest",
    "serde",
    "serde_json",
    "smallvec",
    "thiserror",
    "xxhash-rust",
];

/// The crate of Compose files needs the positions that only the parser of YAML knows.
const COMPOSE_MAY_USE: [&str; 1] = ["granit-parser"];

/// The consensus machine wraps the raft crate, which requires a slog logger as an argument.
const CONSENSUS_MAY_USE: [&str; 2] = ["raft", "slog"];

/// Managers and workers never link each other's crates: they communicate over the wire only.
const MANAGER_SIDE: [&str; 11] = [
    "warren-manager",
    "warren-api",
    "warren-audit",
    "warren-peers",
    "warren-session",
    "warren-bootstrap",
    "warren-store",
    "warren-replica",
    "warren-core",
    "warren-consensus",
    "warren-log",
];
const WORKER_SIDE: [&str; 12] = [
    "warren-worker",
    "warren-task",
    "warren-runtime",
    "warren-image",
    "warren-network",
    "warren-wireguard",
    "warren-dns",
    "warren-container-logs",
    "warren-container-programs",
    "warren-tree",
    "warren-volume",
    "warren-health",
];

/// The crates of the manager from the lowest to the highest layer. A crate depends only on crates of lower layers.
const MANAGER_LAYERS: [&[&str]; 6] = [
    &["warren-core", "warren-consensus"],
    &["warren-replica"],
    &["warren-store"],
    &["warren-peers", "warren-session", "warren-bootstrap", "warren-audit"],
    &["warren-api"],
    &["warren-manager"],
];

/// External dependencies that only their owner crates may use. Tests may use any.
const OWNERS: [(&str, &[&str]); 11] = [
    ("containerd-client", &["warren-runtime", "warren-image"]),
    ("rtnetlink", &["warren-network"]),
    ("netlink-packet-route", &["warren-network"]),
    ("hickory-server", &["warren-dns"]),
    ("gotatun", &["warren-wireguard"]),
    ("prometheus-client", &["warren-telemetry"]),
    ("redb", &["warren-log"]),
    ("sled", &["warren-log"]),
    ("raft", &["warren-consensus"]),
    ("anyhow", &["warren", "warren-manager", "warren-worker"]),
    (
        "warren-proto",
        &[
            "warren",
            "warren-client",
            "warren-manager",
            "warren-api",
            "warren-docker-api",
            "warren-peers",
            "warren-session",
            "warren-store",
            "warren-worker",
        ],
    ),
];

/// The workspace's crates, read without the network.
#[must_use]
pub fn crates() -> Vec<WorkspaceCrate> {
    let root = root();
    metadata()
        .workspace_packages()
        .into_iter()
        .map(|package| {
            let of_kind = |is_test: bool| {
                let kinds = package.dependencies.iter();
                let expected = kinds.filter(|found| (found.kind == DependencyKind::Development) == is_test);
                expected.map(|found| found.name.clone()).collect()
            };
            let directory = package.manifest_path.parent().expect("a manifest lies in a directory");
            let directory = directory.as_std_path().strip_prefix(&root).expect("members lie below the root");
            WorkspaceCrate {
                name: package.name.to_string(),
                directory: directory.to_string_lossy().into_owned(),
                dependencies: of_kind(false),
                dev_dependencies: of_kind(true),
            }
        })
        .collect()
}

/// `cargo metadata` without dependencies: only the workspace members.
#[must_use]
pub fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo can read the workspace")
}

/// Pure crates depend on pure crates and a short list of others.
#[must_use]
pub fn impure_dependencies(crates: &[WorkspaceCrate]) -> Vec<String> {
    let mut violations = Vec::new();
    for member in crates.iter().filter(|member| PURE.contains(&member.name.as_str())) {
        for used in &member.dependencies {
            let used = used.as_str();
            let is_allowed = PURE.contains(&used)
                || PURE_MAY_USE.contains(&used)
                || (member.name == "warren-consensus" && CONSENSUS_MAY_USE.contains(&used))
                || (member.name == "warren-compose" && COMPOSE_MAY_USE.contains(&used));
            if !is_allowed {
                violations.push(format!("{} is pure and must not depend on {used}", member.name));
            }
        }
    }
    for name in PURE.iter().filter(|name| crates.iter().all(|member| member.name != **name)) {
        violations.push(format!("{name} is listed as pure, but there is no such crate"));
    }
    violations
}

/// Crates of managers and workers never depend on each other, not even in tests.
#[must_use]
pub fn manager_worker_dependencies(crates: &[WorkspaceCrate]) -> Vec<String> {
    let mut violations = Vec::new();
    for member in crates {
        for (one, other) in [(&MANAGER_SIDE[..], &WORKER_SIDE[..]), (&WORKER_SIDE[..], &MANAGER_SIDE[..])] {
            if one.contains(&member.name.as_str()) {
                let crossing = member.dependencies.iter().chain(&member.dev_dependencies);
                violations.extend(crossing.filter(|used| other.contains(&used.as_str())).map(|used| {
                    format!(
                        "{} must not depend on {used}: managers and workers share the wire only",
                        member.name
                    )
                }));
            }
        }
    }
    violations
}

/// Crates of the manager depend on crates of lower layers only, also in tests.
#[must_use]
pub fn upward_dependencies(crates: &[WorkspaceCrate]) -> Vec<String> {
    let layer = |name: &str| MANAGER_LAYERS.iter().position(|layer| layer.contains(&name));
    let mut violations = Vec::new();
    for member in crates {
        let Some(own) = layer(&member.name) else { continue };
        let all = member.dependencies.iter().chain(&member.dev_dependencies);
        let upward = all.filter(|used| layer(used).is_some_and(|used| used >= own));
        violations.extend(upward.map(|used| {
            format!("{} must not depend on {used}: it is not in a lower layer of the manager", member.name)
        }));
    }
    for name in MANAGER_LAYERS.concat() {
        if crates.iter().all(|member| member.name != name) {
            violations.push(format!("{name} is listed as a layer, but there is no such crate"));
        }
    }
    violations
}

/// Restricted dependencies are used by their owners only.
#[must_use]
pub fn unowned_backends(crates: &[WorkspaceCrate]) -> Vec<String> {
    let mut violations = Vec::new();
    for member in crates.iter().filter(|member| !member.is_test_crate()) {
        for (backend, owners) in OWNERS {
            let uses = member.dependencies.iter().any(|used| used == backend);
            if uses && !owners.contains(&member.name.as_str()) {
                let owners = owners.join(", ");
                violations.push(format!("{} must not depend on {backend}: only {owners} may", member.name));
            }
        }
    }
    violations
}

/// Crates that ship do not depend on test crates.
#[must_use]
pub fn test_crates_in_release(crates: &[WorkspaceCrate]) -> Vec<String> {
    let tests: Vec<&str> =
        crates.iter().filter(|member| member.is_test_crate()).map(|member| member.name.as_str()).collect();
    let shipping = crates.iter().filter(|member| !member.is_test_crate());
    shipping
        .flat_map(|member| member.dependencies.iter().map(move |used| (member, used)))
        .filter(|(_, used)| tests.contains(&used.as_str()))
        .map(|(member, used)| format!("{} ships and must not depend on {used}", member.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;

    fn member(name: &str, directory: &str, shipped: &[&str], tested_with: &[&str]) -> WorkspaceCrate {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        WorkspaceCrate {
            name: name.to_owned(),
            directory: directory.to_owned(),
            dependencies: owned(shipped),
            dev_dependencies: owned(tested_with),
        }
    }

    #[test]
    fn pure_crates_stay_pure() {
        assert_none(&impure_dependencies(&crates()));
    }

    #[test]
    fn manager_and_worker_stay_apart() {
        assert_none(&manager_worker_dependencies(&crates()));
    }

    #[test]
    fn manager_crates_depend_on_lower_layers() {
        assert_none(&upward_dependencies(&crates()));
    }

    #[test]
    fn backends_have_owners() {
        assert_none(&unowned_backends(&crates()));
    }

    #[test]
    fn tests_do_not_ship() {
        assert_none(&test_crates_in_release(&crates()));
    }

    #[test]
    fn an_impure_dependency_is_named() {
        let pure = PURE.map(|name| member(name, "x", &[], &["tokio"]));
        assert_none(&impure_dependencies(&pure));
        let mut impure = pure.to_vec();
        impure[1].dependencies = vec!["imbl".to_owned(), "tokio".to_owned(), "raft".to_owned()];
        let expected = [
            "warren-core is pure and must not depend on tokio",
            "warren-core is pure and must not depend on raft",
        ];
        assert_eq!(impure_dependencies(&impure), expected);
        assert_eq!(
            impure_dependencies(&pure[1..]),
            ["warren-types is listed as pure, but there is no such crate"]
        );
    }

    #[test]
    fn manager_worker_dependency_is_named() {
        let crates = [
            member("warren-manager", "manager", &["warren-runtime"], &[]),
            member("warren-task", "worker/core", &[], &["warren-core"]),
            member("warren", "cli", &["warren-manager", "warren-worker"], &[]),
        ];
        assert_eq!(manager_worker_dependencies(&crates).len(), 2);
    }

    #[test]
    fn upward_dependency_is_named() {
        let mut crates: Vec<_> = MANAGER_LAYERS
            .concat()
            .iter()
            .map(|name| member(name, "manager/x", &["warren-types"], &[]))
            .collect();
        assert_none(&upward_dependencies(&crates));
        let lowest = crates.remove(0);
        crates.push(member("warren-peers", "manager/peers", &["warren-store"], &["warren-session"]));
        crates.push(member("warren-store", "manager/store", &["warren-replica", "warren-api"], &[]));
        let expected = [
            "warren-peers must not depend on warren-session: it is not in a lower layer of the manager"
                .to_owned(),
            "warren-store must not depend on warren-api: it is not in a lower layer of the manager"
                .to_owned(),
            format!("{} is listed as a layer, but there is no such crate", lowest.name),
        ];
        assert_eq!(upward_dependencies(&crates), expected);
    }

    #[test]
    fn unowned_backend_is_named() {
        let crates = [
            member("warren-worker", "worker", &["containerd-client"], &[]),
            member("warren-runtime", "pkg/runtime", &["containerd-client"], &[]),
            member("warren-test-e2e", "tests/e2e", &["containerd-client"], &[]),
        ];
        let expected =
            ["warren-worker must not depend on containerd-client: only warren-runtime, warren-image may"];
        assert_eq!(unowned_backends(&crates), expected);
    }

    #[test]
    fn a_shipped_test_crate_is_named() {
        let crates = [
            member("warren-testkit", "tests/testkit", &[], &[]),
            member("warren-log", "pkg/log", &["warren-testkit"], &[]),
            member("warren-image", "pkg/image", &[], &["warren-testkit"]),
        ];
        assert_eq!(
            test_crates_in_release(&crates),
            ["warren-log ships and must not depend on warren-testkit"]
        );
    }
}
