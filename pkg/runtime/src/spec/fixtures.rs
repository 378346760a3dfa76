//! A spec, an image and machines for tests.

use warren_image::{Reference, RunConfig};

use super::*;
use crate::container::ContainerOwner;

/// cgroup version 1, and a machine with all features.
pub(crate) const HOST: HostFeatures = HostFeatures {
    unified_cgroups: false,
    limits_swap: true,
    recursive_read_only: true,
    capabilities: capabilities::CapabilitySet::ALL,
    architectures: AllowedArchitectures::Native,
    kernel: (6, 1),
};

pub(crate) fn spec() -> ContainerSpec {
    let owner = ContainerOwner { task: "t".into(), attempt: 1, spec_hash: "h".into() };
    ContainerSpec {
        hostname: "web-1".into(),
        ..ContainerSpec::new(ContainerId::parse("web.1").unwrap(), owner, Reference::parse("x").unwrap())
    }
}

pub(crate) fn image() -> RunConfig {
    RunConfig {
        entrypoint: vec!["/entry".into()],
        cmd: vec!["one".into()],
        env: vec!["PATH=/bin".into(), "A=image".into(), "broken".into()],
        working_dir: "/srv".into(),
        ..RunConfig::default()
    }
}

pub(crate) fn build(spec: &ContainerSpec, host: HostFeatures) -> oci::Spec {
    build_with(spec, &ResolvedSpec::default(), host)
}

pub(crate) fn build_with(spec: &ContainerSpec, meant: &ResolvedSpec, host: HostFeatures) -> oci::Spec {
    spec.validate().unwrap();
    document(spec, &image(), meant, "/warren", host).unwrap()
}

pub(crate) fn strings(list: &[&str]) -> Option<Vec<String>> {
    Some(list.iter().map(|word| (*word).to_owned()).collect())
}
