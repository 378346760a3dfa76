//! Privileges of a container: capabilities, devices, sysctls, network and seccomp.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_spec::runtime::Capability;
use warren_types::SeccompProfile;
use warren_types::spec::sysctl_fault;

use crate::error::Error;

/// Allowed system calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SeccompPolicy {
    /// Docker's default profile for the container's capabilities.
    #[default]
    Default,
    /// All system calls.
    Unconfined,
    /// What of this profile applies to the container on this machine, also if the container is privileged.
    Profile(Box<SeccompProfile>),
}

/// Network of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// An own network namespace without connections.
    #[default]
    Isolated,
    /// The network namespace at this path.
    Joined(PathBuf),
    /// The network of the host.
    Host,
}

/// A host device for the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Absolute path on the host; links are followed. Must be a device when the process is created.
    pub source: PathBuf,
    /// Absolute path in the container.
    pub target: PathBuf,
    /// Allowed operations.
    pub access: DevicePermissions,
}

/// Allowed operations on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePermissions {
    /// Read.
    pub read: bool,
    /// Write.
    pub write: bool,
    /// Create device nodes.
    pub mknod: bool,
}

impl DevicePermissions {
    /// All operations.
    pub const FULL: Self = Self { read: true, write: true, mknod: true };

    /// In the form of the kernel: letters of `rwm`.
    pub(crate) fn as_rwm(self) -> String {
        let letters = [(self.read, 'r'), (self.write, 'w'), (self.mknod, 'm')];
        letters.into_iter().filter_map(|(granted, letter)| granted.then_some(letter)).collect()
    }
}

/// One entry of a list of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapabilityEntry {
    /// All capabilities that the machine can give.
    All,
    One(Capability),
}

impl CapabilityEntry {
    /// Parses a name with or without `CAP_`, in any case, or `ALL`.
    pub fn parse(text: &str) -> Option<Self> {
        let upper = text.to_ascii_uppercase();
        if upper == "ALL" {
            return Some(Self::All);
        }
        upper.strip_prefix("CAP_").unwrap_or(&upper).parse().ok().map(Self::One)
    }
}

pub(super) fn check_capabilities(field: &str, names: &[String]) -> Result<(), Error> {
    for (place, name) in names.iter().enumerate() {
        if CapabilityEntry::parse(name).is_none() {
            let reason = format!("{name:?} is not a Linux capability; use a name like NET_ADMIN, or ALL");
            return Err(Error::invalid_field(format!("{field}[{place}]"), reason));
        }
    }
    Ok(())
}

pub(super) fn check_devices(devices: &[HostDevice]) -> Result<(), Error> {
    for (place, device) in devices.iter().enumerate() {
        let wrong = |part: &str, reason: String| {
            Err(Error::invalid_field(format!("devices[{place}].{part}"), reason))
        };
        if !device.source.is_absolute() {
            return wrong("source", format!("{:?} is not an absolute path", device.source));
        }
        if !super::storage::is_normalized(&device.target) || device.target == Path::new("/") {
            return wrong("target", format!("{:?} is not an absolute path without '..'", device.target));
        }
        if devices[..place].iter().any(|earlier| earlier.target == device.target) {
            return wrong("target", format!("{:?} is given twice", device.target));
        }
        if device.access.as_rwm().is_empty() {
            return wrong("access", "must not be empty; use letters of rwm".to_owned());
        }
    }
    Ok(())
}

/// Only settings of the container's namespaces are allowed: others would change the host.
pub(super) fn check_sysctls(sysctls: &BTreeMap<String, String>, network: &NetworkMode) -> Result<(), Error> {
    for (key, value) in sysctls {
        let wrong = |reason: String| Err(Error::invalid_field(format!("sysctls[{key:?}]"), reason));
        if let Some(fault) = sysctl_fault(key, value) {
            return wrong(fault.to_owned());
        }
        if key.starts_with("net.") && *network == NetworkMode::Host {
            return wrong(
                "the container uses the host network, whose settings it must not change".to_owned(),
            );
        }
    }
    Ok(())
}
