//! Secrets and configs of a task.

use serde::{Deserialize, Serialize};

use super::storage::is_normalized_relative;
use crate::{SecretObjectName, Violations};

/// The most secrets, and the most configs, of a task.
pub const MAX_TASK_SECRET_OBJECTS: usize = 64;
/// Directories that usual images have, where a file cannot be.
pub(super) const IMAGE_DIRECTORIES: [&str; 27] = [
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/local",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/tmp",
];
/// The directory of secrets without a target.
const DEFAULT_SECRETS_DIR: &str = "/run/secrets";
/// The longest target in bytes, and the longest name in it: as in the kernel.
const MAX_TARGET_LENGTH: usize = 1024;
const MAX_TARGET_NAME_LENGTH: usize = 255;
/// It means "unchanged" when the owner of a file is set, so no file can belong to it.
const UNCHANGED_OWNER: u32 = u32::MAX;

/// A secret or a config that a task gets as a file. A new version of it makes a new revision of the service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretObjectMount {
    /// Name of the secret or config.
    pub source: SecretObjectName,
    /// Absolute path in the container; `None` is `/run/secrets/NAME` for a secret and `/NAME` for a config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Owner; `None` is the container's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group; `None` is the container user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Permission bits; `None` is 0400 for a secret and 0444 for a config.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::text::octal")]
    pub mode: Option<u32>,
    /// Its data is a [`Template`](crate::Template), expanded for each task.
    #[serde(default)]
    pub template: bool,
}

impl SecretObjectMount {
    /// A mount with defaults for all but the source.
    pub fn new(source: SecretObjectName) -> Self {
        Self { source, target: None, uid: None, gid: None, mode: None, template: false }
    }

    /// Its path in the container as a secret.
    pub fn secret_target(&self) -> String {
        self.target.clone().unwrap_or_else(|| format!("{DEFAULT_SECRETS_DIR}/{}", self.source))
    }

    /// Its path in the container as a config.
    pub fn config_target(&self) -> String {
        self.target.clone().unwrap_or_else(|| format!("/{}", self.source))
    }

    /// Permission bits as a secret.
    pub fn secret_mode(&self) -> u32 {
        self.mode.unwrap_or(0o400)
    }

    /// Permission bits as a config.
    pub fn config_mode(&self) -> u32 {
        self.mode.unwrap_or(0o444)
    }

    /// All violations of the mount; paths are relative to it.
    pub(super) fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if let Some(target) = &self.target {
            let below = |dir: &str| target.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
            if target.len() > MAX_TARGET_LENGTH
                || target.split('/').any(|name| name.len() > MAX_TARGET_NAME_LENGTH)
            {
                let found = target.len();
                let message = format!(
                    "of {found} bytes is too long: it has at most {MAX_TARGET_LENGTH}, and \
                     {MAX_TARGET_NAME_LENGTH} between slashes"
                );
                wrong.add("target", message);
            } else if !target.strip_prefix('/').is_some_and(is_normalized_relative) {
                // With empty parts one file would have several names, of which other checks compare only one.
                let message = format!(
                    "{target:?} is not the absolute path of a file without '.', '..' and empty parts"
                );
                wrong.add("target", message);
            } else if ["/proc", "/sys", "/dev"].iter().any(|dir| target == dir || below(dir)) {
                wrong.add("target", format!("{target} is in a directory of the container's kernel"));
            }
        }
        for (field, id) in [("uid", self.uid), ("gid", self.gid)] {
            if id == Some(UNCHANGED_OWNER) {
                wrong.add(
                    field,
                    format!("{UNCHANGED_OWNER} is not a valid id; give 0 to {}", UNCHANGED_OWNER - 1),
                );
            }
        }
        if let Some(mode) = self.mode.filter(|mode| *mode > 0o777) {
            wrong.add("mode", format!("{mode:o} has more than the permission bits 777"));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(change: impl FnOnce(&mut SecretObjectMount)) -> Vec<String> {
        let mut mount = SecretObjectMount::new("db".parse().unwrap());
        change(&mut mount);
        mount.validate().0.into_iter().map(|wrong| format!("{}: {}", wrong.path, wrong.message)).collect()
    }

    #[test]
    fn target_must_be_normalized_absolute_path() {
        let at = |target: &str| wrong(|mount| mount.target = Some(target.to_owned()));
        let longest = format!("/{}/{}", "x".repeat(255), "y".repeat(255));
        for good in ["/x", "/a/b.conf", "/\u{e4} \u{f6}/x", "/device", "/run/dev/x", &longest] {
            assert_eq!(at(good), [""; 0], "{good}");
        }
        for plain in ["", "/", "x", "a/b", "/a/", "/a//b", "//dev/x", "/a/./b", "/a/../b", "/a\0b"] {
            let text = at(plain);
            assert!(text.len() == 1 && text[0].contains("is not the absolute path of a file"), "{text:?}");
        }
        for kernel in ["/proc", "/dev/x", "/sys/fs/x"] {
            assert!(at(kernel)[0].contains("of the container's kernel"), "{kernel}");
        }
        for long in [format!("/{}", "x".repeat(256)), "/x".repeat(513)] {
            let text = at(&long);
            assert!(text[0].contains("is too long: it has at most 1024"), "{text:?}");
            assert!(text[0].len() < 200, "what is too long is not repeated: {text:?}");
        }
    }

    #[test]
    fn reserved_owner_id_is_refused() {
        assert_eq!(wrong(|mount| (mount.uid, mount.gid) = (Some(UNCHANGED_OWNER - 1), Some(0))), [""; 0]);
        let text = wrong(|mount| (mount.uid, mount.gid) = (Some(UNCHANGED_OWNER), Some(UNCHANGED_OWNER)));
        assert_eq!(text.len(), 2);
        assert_eq!(text[0], "uid: 4294967295 is not a valid id; give 0 to 4294967294");
    }
}
