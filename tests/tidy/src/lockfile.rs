//! Rules for Cargo.lock: one gRPC stack, one TLS stack, one crypto provider.

use std::collections::BTreeMap;

use toml::Table;

/// Two versions of one of these would be two incompatible gRPC, TLS or runtime stacks.
const ONE_VERSION: [&str; 10] = [
    "containerd-client",
    "h2",
    "http",
    "hyper",
    "prost",
    "rustls",
    "tokio",
    "tokio-rustls",
    "tonic",
    "tower",
];

/// Each of these is a second way of doing something, or needs a build tool that users would have to install.
const FORBIDDEN: [&str; 6] = ["aws-lc-sys", "bindgen", "cmake", "native-tls", "openssl-sys", "zstd-sys"];

/// Reads a Cargo.lock and lists packages with a wrong number of versions, and unwanted packages.
#[must_use]
pub fn duplicates_and_unwanted(lock: &str) -> Vec<String> {
    let lock: Table = lock.parse().expect("Cargo.lock is TOML");
    let packages = lock["package"].as_array().expect("Cargo.lock lists packages");
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let field = |name: &str| package[name].as_str().expect("packages have a name and a version");
        versions.entry(field("name")).or_default().push(field("version"));
    }
    let mut violations = Vec::new();
    for name in ONE_VERSION {
        match versions.get(name).map(Vec::as_slice) {
            Some([_]) => {}
            Some(several) => {
                violations.push(format!("{name} has more than one version: {}", several.join(", ")))
            }
            None => violations.push(format!("{name} is missing; exactly one version is required")),
        }
    }
    let unwanted = FORBIDDEN.iter().filter(|name| versions.contains_key(**name));
    violations.extend(unwanted.map(|name| format!("{name} is not allowed; deny.toml has the reason")));
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{assert_none, source};

    fn lock(names: &[&str]) -> String {
        names.iter().map(|name| format!("[[package]]\nname = \"{name}\"\nversion = \"1.0.0\"\n")).collect()
    }

    #[test]
    fn lockfile_has_one_version_and_no_unwanted_package() {
        assert_none(&duplicates_and_unwanted(
            &std::fs::read_to_string(source::root().join("Cargo.lock")).unwrap(),
        ));
    }

    #[test]
    fn a_second_version_and_an_unwanted_package_are_named() {
        assert_none(&duplicates_and_unwanted(&lock(&ONE_VERSION)));
        let more = lock(&ONE_VERSION) + &lock(&["tonic", "openssl-sys"]);
        assert_eq!(duplicates_and_unwanted(&more).len(), 2);
        assert_eq!(duplicates_and_unwanted(&lock(&ONE_VERSION[1..])).len(), 1);
    }
}
