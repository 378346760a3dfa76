//! Data that outlives tasks.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{NodeId, Timestamp, Violations, VolumeId, VolumeName};

/// How many options a volume may have.
pub const MAX_VOLUME_OPTIONS: usize = 16;

/// A place for data that outlives the tasks that use it. Names are unique in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Made by the client that created it, or by `apply` where its first task came to a node.
    pub id: VolumeId,
    /// For people and specs, and the name of its directory.
    pub name: VolumeName,
    /// Raft index of the last change.
    pub version: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// Free key-value pairs.
    pub labels: BTreeMap<String, String>,
    /// How it is kept.
    pub driver: VolumeDriver,
    /// What the driver is told.
    pub options: BTreeMap<String, String>,
    /// Where its data is; `None` until its first task is placed.
    pub node: Option<NodeId>,
    /// Its data is being deleted; nothing may use it any more.
    pub removing: bool,
}

/// How a volume is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeDriver {
    /// A directory of one node.
    #[default]
    Local,
}

impl VolumeDriver {
    /// All of them.
    pub const ALL: [Self; 1] = [Self::Local];

    /// As people write it: `local`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
        }
    }
}

impl FromStr for VolumeDriver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|driver| driver.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is no volume driver; give local"))
    }
}

impl Volume {
    /// Everything wrong with driver, options and labels; paths are relative to the volume.
    pub fn validate(driver: VolumeDriver, options: &BTreeMap<String, String>) -> Violations {
        let mut wrong = Violations::default();
        if options.len() > MAX_VOLUME_OPTIONS {
            wrong.add("options", format!("{} are more than {MAX_VOLUME_OPTIONS}", options.len()));
        }
        for (key, value) in options {
            let VolumeDriver::Local = driver;
            // A sign would be taken for a part of the number.
            let is_digits = value.bytes().all(|byte| byte.is_ascii_digit());
            let fault = match key.as_str() {
                "uid" | "gid" => {
                    // The greatest stands for "unchanged" where the kernel is asked to change an owner.
                    let number = value.parse::<u32>().is_ok_and(|id| id != u32::MAX);
                    let is_one = is_digits && value.len() <= 10 && number;
                    (!is_one).then_some("is not a number of 0 to 4294967294")
                }
                "mode" => match u32::from_str_radix(value, 8) {
                    Ok(mode) if is_digits && mode <= 0o7777 && value.len() <= 5 => None,
                    _ => Some("is not permission bits of 0 to 7777"),
                },
                _ => {
                    let message = "is no option of the driver local; it has uid, gid and mode";
                    wrong.add(format!("options[{key:?}]"), message);
                    continue;
                }
            };
            if let Some(fault) = fault {
                wrong.add(format!("options[{key:?}]"), format!("{value:?} {fault}"));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_the_driver() {
        let check = |options: &[(&str, &str)], wanted: &[&str]| {
            let options = options.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let found = Volume::validate(VolumeDriver::Local, &options).0;
            assert_eq!(found.iter().map(|v| v.path.as_str()).collect::<Vec<_>>(), wanted);
        };
        check(&[("uid", "1000"), ("gid", "0"), ("mode", "0750")], &[]);
        check(&[("uid", "-1")], &["options[\"uid\"]"]);
        check(&[("mode", "9"), ("size", "1G")], &["options[\"mode\"]", "options[\"size\"]"]);
        check(&[("mode", "17777")], &["options[\"mode\"]"]);
        check(&[("uid", "4294967294")], &[]);
        check(&[("gid", "4294967295")], &["options[\"gid\"]"]);
        check(&[("mode", "+7"), ("uid", "+5")], &["options[\"mode\"]", "options[\"uid\"]"]);
        check(&[("mode", "000777"), ("uid", "00000000001")], &["options[\"mode\"]", "options[\"uid\"]"]);
        assert!("nfs".parse::<VolumeDriver>().unwrap_err().contains("give local"));
    }
}
