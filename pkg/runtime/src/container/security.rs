//! What a container may do beyond, or less than, what every container may.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::spec::capabilities;

/// Kernel settings that belong to the namespace of inter-process communication; also all of `fs.mqueue.`.
/// Source: namespaces(7) and ipc_namespaces(7).
const IPC_SYSCTLS: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shm_rmid_forced",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
];
/// To the namespace of names. The host name has a field of its own.
const UTS_SYSCTL: &str = "kernel.domainname";

/// Which system calls the container may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Seccomp {
    /// What Docker's default profile allows with the container's capabilities.
    #[default]
    Default,
    /// All of them.
    Unconfined,
}

/// Which network the container is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// One of its own, without any connection.
    #[default]
    Isolated,
    /// The network namespace at this path.
    Joined(PathBuf),
    /// The host's.
    Host,
}

/// A device of the host that the container can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Absolute path on the host; links are followed. Must be a device when the process is created.
    pub source: PathBuf,
    /// Absolute path in the container.
    pub target: PathBuf,
    /// What the container may do with it.
    pub access: Access,
}

/// What a container may do with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Read it.
    pub read: bool,
    /// Write to it.
    pub write: bool,
    /// Make another node for it.
    pub mknod: bool,
}

impl Access {
    /// Everything.
    pub const FULL: Self = Self { read: true, write: true, mknod: true };

    /// As the kernel writes it: letters of `rwm`.
    pub(crate) fn letters(self) -> String {
        let letters = [(self.read, 'r'), (self.write, 'w'), (self.mknod, 'm')];
        letters.into_iter().filter_map(|(granted, letter)| granted.then_some(letter)).collect()
    }
}

pub(super) fn check_capabilities(field: &str, names: &[String]) -> Result<(), Error> {
    for (place, name) in names.iter().enumerate() {
        if capabilities::Wish::parse(name).is_none() {
            let reason = format!("{name:?} is no capability of Linux; give a name like NET_ADMIN, or ALL");
            return Err(Error::invalid(format!("{field}[{place}]"), reason));
        }
    }
    Ok(())
}

pub(super) fn check_devices(devices: &[Device]) -> Result<(), Error> {
    for (place, device) in devices.iter().enumerate() {
        let wrong =
            |part: &str, reason: String| Err(Error::invalid(format!("devices[{place}].{part}"), reason));
        if !device.source.is_absolute() {
            return wrong("source", format!("{:?} is not an absolute path", device.source));
        }
        if !super::storage::is_plain(&device.target) || device.target == Path::new("/") {
            return wrong("target", format!("{:?} is not an absolute path without '..'", device.target));
        }
        if devices[..place].iter().any(|earlier| earlier.target == device.target) {
            return wrong("target", format!("{:?} is given twice", device.target));
        }
        if device.access.letters().is_empty() {
            return wrong("access", "it allows nothing; give letters of rwm".to_owned());
        }
    }
    Ok(())
}

/// Only settings of the container's own namespaces: others would change the host.
pub(super) fn check_sysctls(sysctls: &BTreeMap<String, String>, network: &Network) -> Result<(), Error> {
    for (key, value) in sysctls {
        let wrong = |reason: String| Err(Error::invalid(format!("sysctls[{key:?}]"), reason));
        let plain = |part: &str| {
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        if !key.split('.').all(plain) || value.is_empty() || value.contains(['\0', '\n']) {
            return wrong("it is no setting; give a name like net.core.somaxconn and one line".to_owned());
        }
        if key.starts_with("net.") {
            if *network == Network::Host {
                return wrong(
                    "the container is in the host's network, whose settings are not its".to_owned(),
                );
            }
        } else if !IPC_SYSCTLS.contains(&key.as_str()) && !key.starts_with("fs.mqueue.") && key != UTS_SYSCTL
        {
            return wrong(
                "it belongs to the whole machine, not to a container; set it on the node".to_owned(),
            );
        }
    }
    Ok(())
}
