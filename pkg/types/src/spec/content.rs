//! Secrets and configs of a task.

use serde::{Deserialize, Serialize};

use super::storage::is_plain_relative;
use crate::{ContentName, Violations};

/// How many secrets, and how many configs, a task may have.
pub const MAX_CONTENTS: usize = 64;
/// Where secrets are without a target.
const SECRETS: &str = "/run/secrets";
/// How long a target may be, and a name in it: as the kernel has it.
const MAX_TARGET: usize = 1024;
const MAX_TARGET_NAME: usize = 255;
/// It stands for "unchanged" where the kernel is asked to change an owner, so that nothing ever belongs to it.
const NOBODY: u32 = u32::MAX;

/// A secret or a config that a task sees as a file. It follows the content: a new version makes a new revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContentMount {
    /// Which one.
    pub source: ContentName,
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
    /// Its text is a [`Template`](crate::Template), expanded for each task.
    #[serde(default)]
    pub template: bool,
}

impl ContentMount {
    /// With defaults for all but the source.
    pub fn new(source: ContentName) -> Self {
        Self { source, target: None, uid: None, gid: None, mode: None, template: false }
    }

    /// Where the container sees it as a secret.
    pub fn secret_target(&self) -> String {
        self.target.clone().unwrap_or_else(|| format!("{SECRETS}/{}", self.source))
    }

    /// Where the container sees it as a config.
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

    /// Everything wrong with it; paths are relative to it.
    pub(super) fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if let Some(target) = &self.target {
            let below = |dir: &str| target.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
            if target.len() > MAX_TARGET || target.split('/').any(|name| name.len() > MAX_TARGET_NAME) {
                let found = target.len();
                let message = format!(
                    "of {found} bytes is too long: it has at most {MAX_TARGET}, and {MAX_TARGET_NAME} between slashes"
                );
                wrong.add("target", message);
            } else if !target.strip_prefix('/').is_some_and(is_plain_relative) {
                // With empty parts one file would have several names, of which only one is looked for elsewhere.
                let message = format!(
                    "{target:?} is not the absolute path of a file without '.', '..' and empty parts"
                );
                wrong.add("target", message);
            } else if ["/proc", "/sys", "/dev"].iter().any(|dir| target == dir || below(dir)) {
                wrong.add("target", format!("{target} is in a directory of the container's kernel"));
            }
        }
        for (field, id) in [("uid", self.uid), ("gid", self.gid)] {
            if id == Some(NOBODY) {
                wrong.add(field, format!("{NOBODY} is nobody's; there are 0 to {}", NOBODY - 1));
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

    fn wrong(change: impl FnOnce(&mut ContentMount)) -> Vec<String> {
        let mut mount = ContentMount::new("db".parse().unwrap());
        change(&mut mount);
        mount.validate().0.into_iter().map(|wrong| format!("{}: {}", wrong.path, wrong.message)).collect()
    }

    #[test]
    fn targets_are_paths_of_files_that_say_where_they_lead() {
        let at = |target: &str| wrong(|mount| mount.target = Some(target.to_owned()));
        let longest = format!("/{}/{}", "x".repeat(255), "y".repeat(255));
        for good in ["/x", "/a/b.conf", "/\u{e4} \u{f6}/x", "/device", "/run/dev/x", &longest] {
            assert_eq!(at(good), [""; 0], "{good}");
        }
        for plain in ["", "/", "x", "a/b", "/a/", "/a//b", "//dev/x", "/a/./b", "/a/../b", "/a\0b"] {
            let said = at(plain);
            assert!(said.len() == 1 && said[0].contains("is not the absolute path of a file"), "{said:?}");
        }
        for kernel in ["/proc", "/dev/x", "/sys/fs/x"] {
            assert!(at(kernel)[0].contains("of the container's kernel"), "{kernel}");
        }
        for long in [format!("/{}", "x".repeat(256)), "/x".repeat(513)] {
            let said = at(&long);
            assert!(said[0].contains("is too long: it has at most 1024"), "{said:?}");
            assert!(said[0].len() < 200, "what is too long is not repeated: {said:?}");
        }
    }

    #[test]
    fn an_owner_that_no_file_can_have_is_refused() {
        assert_eq!(wrong(|mount| (mount.uid, mount.gid) = (Some(NOBODY - 1), Some(0))), [""; 0]);
        let said = wrong(|mount| (mount.uid, mount.gid) = (Some(NOBODY), Some(NOBODY)));
        assert_eq!(said.len(), 2);
        assert_eq!(said[0], "uid: 4294967295 is nobody's; there are 0 to 4294967294");
    }
}
