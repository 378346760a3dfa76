//! Seccomp profiles that flags name as files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warren_client::{Client, SeccompConfig};
use warren_types::{Id, SecretObjectId, SecretObjectName};

use crate::args::spec::PrivilegeFlags;
use crate::args::value::{SeccompSource, SecurityOption, Setting};
use crate::failure::{CommandError, ExitKind, from_client};

/// The profiles of the files, by their paths.
#[derive(Debug, Default)]
pub struct SeccompFiles(BTreeMap<PathBuf, SeccompConfig>);

impl SeccompFiles {
    /// Reads the files. `what` is the failure summary.
    pub fn read(flags: &PrivilegeFlags, what: &str) -> Result<Self, CommandError> {
        let flag = match &flags.seccomp {
            Some(Setting::Set(source)) => Some(source),
            Some(Setting::Default) | None => None,
        };
        let options = flags.security_opt.iter().filter_map(|option| match option {
            SecurityOption::Seccomp(source) => Some(source),
            SecurityOption::NoNewPrivileges(_) | SecurityOption::AppArmor(_) => None,
        });
        let mut read = BTreeMap::new();
        for source in flag.into_iter().chain(options) {
            if let SeccompSource::File(path) = source {
                read.insert(path.clone(), read_profile(path, what)?);
            }
        }
        Ok(Self(read))
    }

    /// The config of the profile in a file; `None` if it was not read.
    pub fn config(&self, path: &Path) -> Option<&SecretObjectName> {
        self.0.get(path).map(|config| &config.name)
    }

    /// Creates the configs that do not exist.
    pub async fn create(&self, client: &Client, what: &str) -> Result<(), CommandError> {
        for config in self.0.values() {
            let ensured = client.ensure_seccomp_config(SecretObjectId(Id(rand::random())), config).await;
            ensured.map_err(|error| from_client(what, error))?;
        }
        Ok(())
    }
}

fn read_profile(path: &Path, what: &str) -> Result<SeccompConfig, CommandError> {
    let hint = "give a file with a seccomp profile in Docker's format, default, unconfined or config/NAME";
    let failed =
        |exit, why: String| CommandError::new(exit, what, format!("{}: {why}", path.display()), hint);
    let json = std::fs::read(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(ExitKind::NotFound, "there is no such file".to_owned()),
        _ => failed(ExitKind::Failed, error.to_string()),
    })?;
    SeccompConfig::new(&json).map_err(|wrong| failed(ExitKind::Usage, wrong.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(seccomp: Option<&Path>, option: &str) -> PrivilegeFlags {
        PrivilegeFlags {
            privileged: None,
            no_new_privileges: None,
            allow_metadata: None,
            seccomp: seccomp.map(|path| Setting::Set(SeccompSource::File(path.to_owned()))),
            apparmor: None,
            security_opt: vec![option.parse().unwrap()],
            user_namespace: None,
            read_only: None,
        }
    }

    #[test]
    fn files_become_configs() {
        let dir = tempfile::tempdir().unwrap();
        let (good, wrong) = (dir.path().join("good.json"), dir.path().join("wrong.json"));
        std::fs::write(&good, r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#).unwrap();
        std::fs::write(&wrong, "{}").unwrap();
        let read = SeccompFiles::read(&flags(Some(&good), "seccomp=unconfined"), "x").unwrap();
        assert!(read.config(&good).unwrap().as_str().starts_with("seccomp-"));
        assert!(read.config(&wrong).is_none());
        let option = format!("seccomp={}", wrong.display());
        let failure = SeccompFiles::read(&flags(None, &option), "x").unwrap_err();
        assert!(failure.why.contains("wrong.json: defaultAction: is missing"), "{}", failure.why);
        let failure = SeccompFiles::read(&flags(None, "seccomp=/no/such/file"), "x").unwrap_err();
        assert!(failure.why.contains("there is no such file"), "{}", failure.why);
    }
}
