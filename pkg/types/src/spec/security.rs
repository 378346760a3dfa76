//! Privileges of a task: capabilities, devices, ulimits, seccomp, AppArmor and its user namespace.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::storage::is_normalized_absolute;
use crate::name::ParseNameError;
use crate::text::serde_as_text;
use crate::{SecretObjectName, Violations};

/// What precedes the name of the config with a seccomp profile.
const CONFIG_PREFIX: &str = "config/";
/// The longest name of an AppArmor profile, in bytes.
const MAX_PROFILE_NAME: usize = 255;

/// A Linux capability, or all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability(&'static str);

/// Every capability as of Linux 5.9, and `ALL`.
const CAPABILITIES: [&str; 42] = [
    "ALL",
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

impl Capability {
    /// Every capability.
    pub const ALL: Self = Self("ALL");

    /// Without `CAP_`: `NET_ADMIN`, or `ALL`.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// All names, sorted.
    pub fn names() -> &'static [&'static str] {
        &CAPABILITIES
    }
}

impl FromStr for Capability {
    type Err = String;

    /// In any case, with or without `CAP_`.
    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        let place = CAPABILITIES.binary_search(&name);
        place
            .map(|place| Self(CAPABILITIES[place]))
            .map_err(|_| format!("{text:?} is not a Linux capability; give a name like NET_ADMIN, or ALL"))
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

serde_as_text!(AppArmor, Capability, DeviceAccess, Seccomp, UlimitName);

/// A device of the node that the container can use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Absolute path on the node.
    pub source: String,
    /// Absolute path in the container.
    pub target: String,
    /// What the container may do with the device.
    pub access: DeviceAccess,
}

/// What a container may do with a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAccess {
    /// Read it.
    pub read: bool,
    /// Write to it.
    pub write: bool,
    /// Make another device node for it.
    pub mknod: bool,
}

impl DeviceAccess {
    /// All access.
    pub const FULL: Self = Self { read: true, write: true, mknod: true };
}

impl FromStr for DeviceAccess {
    type Err = String;

    /// Letters of `rwm`, each at most once.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut access = Self { read: false, write: false, mknod: false };
        for letter in text.chars() {
            let flag = match letter {
                'r' => &mut access.read,
                'w' => &mut access.write,
                'm' => &mut access.mknod,
                _ => return Err(format!("{text:?} is not a device access; give some of the letters rwm")),
            };
            if std::mem::replace(flag, true) {
                return Err(format!("{text:?} repeats {letter}"));
            }
        }
        let nothing = || "no access at all; give some of the letters rwm".to_string();
        (access.read || access.write || access.mknod).then_some(access).ok_or_else(nothing)
    }
}

impl fmt::Display for DeviceAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |on: bool, letter| if on { letter } else { "" };
        write!(f, "{}{}{}", letter(self.read, "r"), letter(self.write, "w"), letter(self.mknod, "m"))
    }
}

impl Device {
    /// All violations of the device; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        for (path, text) in [("source", &self.source), ("target", &self.target)] {
            if !is_normalized_absolute(text) || text.len() < 2 {
                wrong.add(path, format!("{text:?} is not an absolute path without '..'"));
            }
        }
        wrong
    }
}

/// A limit that the kernel enforces on each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ulimit {
    /// The limited resource.
    pub name: UlimitName,
    /// The initial limit; `None` is unlimited.
    #[serde(with = "crate::text::bound")]
    pub soft: Option<u64>,
    /// The limit to which the process may raise it; `None` is unlimited.
    #[serde(with = "crate::text::bound")]
    pub hard: Option<u64>,
}

/// The resource that a [`Ulimit`] limits, with the names of `setrlimit(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UlimitName(&'static str);

const ULIMITS: [&str; 16] = [
    "as",
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
];

impl UlimitName {
    /// `nofile`.
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// All names, sorted.
    pub fn names() -> &'static [&'static str] {
        &ULIMITS
    }
}

impl FromStr for UlimitName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = ULIMITS.binary_search(&text);
        place
            .map(|place| Self(ULIMITS[place]))
            .map_err(|_| format!("{text:?} is not a ulimit; give one of {}", ULIMITS.join(", ")))
    }
}

impl fmt::Display for UlimitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// Which system calls a container may make: `default`, `unconfined` or `config/NAME` as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Seccomp {
    /// Those of the default profile.
    #[default]
    Default,
    /// All.
    Unconfined,
    /// Those of the profile in this config, which has Docker's format.
    Config(SecretObjectName),
}

impl Seccomp {
    /// The config of its profile, if it has one of its own.
    pub fn config(&self) -> Option<&SecretObjectName> {
        match self {
            Self::Default | Self::Unconfined => None,
            Self::Config(name) => Some(name),
        }
    }
}

impl FromStr for Seccomp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix(CONFIG_PREFIX)) {
            ("default", _) => Ok(Self::Default),
            ("unconfined", _) => Ok(Self::Unconfined),
            (_, Some(name)) => {
                name.parse().map(Self::Config).map_err(|error: ParseNameError| error.to_string())
            }
            _ => Err(format!(
                "{text:?} is not a seccomp profile; give default, unconfined or {CONFIG_PREFIX}NAME"
            )),
        }
    }
}

impl fmt::Display for Seccomp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::Unconfined => f.pad("unconfined"),
            Self::Config(name) => write!(f, "{CONFIG_PREFIX}{name}"),
        }
    }
}

/// Which AppArmor profile a container has: `default`, `unconfined` or the name of one as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum AppArmor {
    /// The default profile, on nodes that have AppArmor; none if the container is privileged.
    #[default]
    Default,
    /// None.
    Unconfined,
    /// The one with this name, which must be loaded on the node.
    Profile(String),
}

impl FromStr for AppArmor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // "&" would combine several profiles.
        let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'&');
        match text {
            "default" => Ok(Self::Default),
            "unconfined" => Ok(Self::Unconfined),
            name if !name.is_empty() && name.len() <= MAX_PROFILE_NAME && is_name(name) => {
                Ok(Self::Profile(name.to_owned()))
            }
            _ => Err(format!(
                "{text:?} is not an AppArmor profile; give default, unconfined or the name of a profile, of at most \
                 {MAX_PROFILE_NAME} ASCII characters without spaces and '&'"
            )),
        }
    }
}

impl fmt::Display for AppArmor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::Unconfined => "unconfined",
            Self::Profile(name) => name,
        })
    }
}

/// Whether programs are kept from getting more privileges than the one that started them (no_new_privs of the kernel).
/// `true` or `false` in files and flags; left out for the default.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum NoNewPrivileges {
    /// As the cluster has it.
    #[default]
    Default,
    /// They are.
    On,
    /// They are not.
    Off,
}

impl NoNewPrivileges {
    /// `None` for the default of the cluster.
    pub fn asked(self) -> Option<bool> {
        match self {
            Self::Default => None,
            Self::On => Some(true),
            Self::Off => Some(false),
        }
    }
}

impl From<bool> for NoNewPrivileges {
    fn from(is_on: bool) -> Self {
        if is_on { Self::On } else { Self::Off }
    }
}

/// As the bool that stored specs had before there was a default.
impl fmt::Debug for NoNewPrivileges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "false",
            Self::On => "true",
            Self::Off => "Off",
        })
    }
}

impl FromStr for NoNewPrivileges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse::<bool>().map(Self::from).map_err(|_| format!("{text:?} is neither true nor false"))
    }
}

impl Serialize for NoNewPrivileges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.asked().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NoNewPrivileges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<bool>::deserialize(deserializer)?.map_or(Self::Default, Self::from))
    }
}

/// Which users of the node the users of a container are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UserNamespace {
    /// The same: root of the container is root of the node.
    #[default]
    Host,
    /// Users without rights on the node, which no other task has: the container has a user namespace of its own.
    Private,
}

impl UserNamespace {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Host, Self::Private];

    /// As in files and flags: `private`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Private => "private",
        }
    }
}

impl FromStr for UserNamespace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|namespace| namespace.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a user namespace; give host or private"))
    }
}

impl fmt::Display for UserNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
