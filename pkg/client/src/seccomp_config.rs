//! Seccomp profiles that clients have as files: each is a config whose name follows from its content.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use warren_types::{
    SeccompProfile, SecretObjectId, SecretObjectKind, SecretObjectName, Violation, Violations,
};

use crate::client::Client;
use crate::error::Error;
use crate::secret_objects::NewSecretObject;

/// A seccomp profile, and the config that has it: `seccomp-` and 16 digits of its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeccompConfig {
    /// Of the config.
    pub name: SecretObjectName,
    json: String,
}

impl SeccompConfig {
    /// The config of a profile in Docker's format.
    ///
    /// # Errors
    /// It is no valid profile; paths are those in the profile.
    pub fn new(json: &[u8]) -> Result<Self, Violations> {
        let json = SeccompProfile::normalize(json)?;
        let hash: String = Sha256::digest(&json).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let name = format!("seccomp-{hash}").parse().expect("letters, digits and a dash are a name");
        Ok(Self { name, json })
    }

    /// The data of the config.
    pub fn json(&self) -> &str {
        &self.json
    }
}

impl Client {
    /// Creates the config unless it exists. `id` is for a new one.
    ///
    /// # Errors
    /// As of a create; [`Error::Refused`] if the config of that name has other data.
    pub async fn ensure_seccomp_config(
        &self,
        id: SecretObjectId,
        config: &SeccompConfig,
    ) -> Result<(), Error> {
        if self.has_seccomp_config(config).await? {
            return Ok(());
        }
        let SeccompConfig { name, json } = config;
        let (name, data) = (name.clone(), json.clone().into_bytes().into());
        let configs = self.secret_objects(SecretObjectKind::Config);
        match configs.create(NewSecretObject { id, name, labels: BTreeMap::new(), data }).await {
            Ok(_) => Ok(()),
            // Somebody else created it at the same time, as for another service with the same file.
            Err(error) if error.is_already_exists() => match self.has_seccomp_config(config).await? {
                true => Ok(()),
                false => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    async fn has_seccomp_config(&self, SeccompConfig { name, json }: &SeccompConfig) -> Result<bool, Error> {
        let configs = self.secret_objects(SecretObjectKind::Config);
        match configs.read(name.as_str(), None).await {
            Ok(found) if found.data[..] == *json.as_bytes() => Ok(true),
            Ok(_) => {
                let message = format!(
                    "config {name}, which is named for this profile, has other data; remove it, or give another \
                     config with the profile as config/NAME"
                );
                let wrong = Violations::from(Violation::new("spec.task.seccomp", message));
                Err(Error::Refused { problem: wrong.into() })
            }
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_follows_from_what_the_profile_says() {
        let name = |json: &str| SeccompConfig::new(json.as_bytes()).unwrap().name;
        let one = name(r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#);
        assert!(one.as_str().starts_with("seccomp-") && one.as_str().len() == 24, "{one}");
        assert_eq!(name("{\n \"defaultAction\": \"SCMP_ACT_ALLOW\"\n}\n"), one);
        assert_ne!(name(r#"{"defaultAction": "SCMP_ACT_LOG"}"#), one);
        assert!(SeccompConfig::new(b"{}").is_err());
    }
}
