//! The contexts file `contexts.toml`: clusters, their managers, and the identity of the user.
//!
//! ```toml
//! current = "default"
//!
//! [[contexts]]
//! name = "default"
//! addresses = ["10.0.0.7:8080", "10.0.0.8:8080"]
//! incarnation = 1795336000
//! ca = "-----BEGIN CERTIFICATE-----..."
//! certificate = "-----BEGIN CERTIFICATE-----..."
//! key = "-----BEGIN PRIVATE KEY-----..."
//!
//! [[contexts]]
//! name = "here"
//! socket = "/run/warren/warren.sock"
//! ```

mod file;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warren_types::ManagerAddress;

use crate::error::Error;

/// Environment variable with the path of the contexts file.
pub const CONTEXTS_VARIABLE: &str = "WARREN_CONTEXTS";

/// The first incarnation of a cluster.
const FIRST_INCARNATION: u64 = 1;

/// The clusters in a contexts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contexts {
    file: PathBuf,
    /// Name of the default context.
    pub current: Option<String>,
    /// In file order, with distinct names.
    contexts: Vec<ClientContext>,
}

/// A cluster and an identity in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientContext {
    /// Name, unique in the file.
    pub name: String,
    /// The managers and the identity.
    pub target: ClientTarget,
    /// Latest known incarnation: managers of an earlier one are ignored. 0 if unknown.
    pub incarnation: u64,
}

/// The managers of a cluster, and how to authenticate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientTarget {
    /// By mutual TLS.
    Tcp {
        /// Addresses of managers, at least one, in the order of attempts.
        addresses: Vec<ManagerAddress>,
        /// Certificate and key of the client.
        identity: ClientIdentity,
    },
    /// By the unix socket of a manager on this machine; the kernel authenticates the user.
    Unix {
        /// Path of the socket.
        socket: PathBuf,
    },
}

/// Certificate and key of the client, and the CA of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Certificates of the cluster CA, PEM.
    pub ca: String,
    /// Client certificate, PEM.
    pub certificate: String,
    /// Client key.
    pub key: PrivateKeyPem,
}

/// A private key, PEM. `Debug` redacts it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrivateKeyPem(pub String);

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

/// Selection of a cluster by flags and environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetSelection {
    /// Name of a context.
    pub context: Option<String>,
    /// Other managers of the context's cluster.
    pub managers: Vec<ManagerAddress>,
    /// Socket of a manager on this machine, if any; used if no context exists.
    pub socket: Option<PathBuf>,
}

impl Contexts {
    /// Path of the file, from the environment: `WARREN_CONTEXTS`, else `warren/contexts.toml` in
    /// `XDG_CONFIG_HOME` or `~/.config`. `None` when none of them is set.
    pub fn path(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let set = |name| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || set("HOME").map(|home| home.join(".config"));
        // Relative paths are ignored, as the XDG specification requires.
        let config = || set("XDG_CONFIG_HOME").filter(|path| path.is_absolute()).or_else(home);
        set(CONTEXTS_VARIABLE).or_else(|| config().map(|config| config.join("warren/contexts.toml")))
    }

    /// Reads the file; a missing file has no contexts.
    pub fn load(file: &Path) -> Result<Self, Error> {
        file::load(file)
    }

    /// Adds `context` to the file, or replaces the one with the same name, and makes it current. Concurrent processes
    /// are serialized by a lock.
    pub fn upsert(file: &Path, context: ClientContext) -> Result<(), Error> {
        file::update(file, |contexts| {
            contexts.current = Some(context.name.clone());
            match contexts.contexts.iter_mut().find(|known| known.name == context.name) {
                Some(known) => *known = context,
                None => contexts.contexts.push(context),
            }
        })
    }

    /// Replaces the identity of contexts for which `is_old` holds, and returns their number. Blocks while another
    /// process changes the file.
    pub fn replace_identities(
        file: &Path,
        is_old: impl Fn(&ClientIdentity) -> bool,
        identity: &ClientIdentity,
    ) -> Result<usize, Error> {
        let due = Self::load(file)?.replace(&is_old, identity);
        // Do not create the file.
        if due > 0 {
            file::update(file, |contexts| {
                contexts.replace(&is_old, identity);
            })?;
        }
        Ok(due)
    }

    /// As [`Contexts::replace_identities`], but replaces none if another process holds the lock.
    pub fn try_replace_identities(
        file: &Path,
        is_old: impl Fn(&ClientIdentity) -> bool,
        identity: &ClientIdentity,
    ) -> Result<usize, Error> {
        let due = Self::load(file)?.replace(&is_old, identity);
        let is_changed = due > 0
            && file::try_update(file, |contexts| {
                contexts.replace(&is_old, identity);
            })?;
        Ok(if is_changed { due } else { 0 })
    }

    fn replace(&mut self, is_old: impl Fn(&ClientIdentity) -> bool, identity: &ClientIdentity) -> usize {
        let mut replaced = 0;
        for context in &mut self.contexts {
            if let ClientTarget::Tcp { identity: known, .. } = &mut context.target
                && is_old(known)
            {
                *known = identity.clone();
                replaced += 1;
            }
        }
        replaced
    }

    /// Stores the addresses of the managers, as reported by a manager that `identity` authenticated to, and the latest
    /// incarnation. Returns whether the file changed: it does not if the addresses are the same with the same first
    /// one, if the context has another identity by now, or if another process holds the lock.
    pub fn update_addresses(
        file: &Path,
        name: &str,
        identity: &ClientIdentity,
        (managers, incarnation): (&[ManagerAddress], u64),
    ) -> Result<bool, Error> {
        let differs = |addresses: &[ManagerAddress]| {
            let all = |addresses: &[ManagerAddress]| addresses.iter().cloned().collect::<BTreeSet<_>>();
            !managers.is_empty() && (addresses.first() != managers.first() || all(addresses) != all(managers))
        };
        let is_due = |context: &ClientContext| match &context.target {
            ClientTarget::Tcp { addresses, identity: known } => {
                context.name == name
                    && known.ca == identity.ca
                    && (differs(addresses) || context.incarnation.max(FIRST_INCARNATION) < incarnation)
            }
            ClientTarget::Unix { .. } => false,
        };
        if !Self::load(file)?.contexts.iter().any(is_due) {
            return Ok(false);
        }
        file::try_update(file, |contexts| {
            for context in contexts.contexts.iter_mut().filter(|context| is_due(context)) {
                if incarnation > FIRST_INCARNATION {
                    context.incarnation = context.incarnation.max(incarnation);
                }
                if let ClientTarget::Tcp { addresses, .. } = &mut context.target
                    && !managers.is_empty()
                {
                    *addresses = managers.to_vec();
                }
            }
        })
    }

    /// Makes the context with this name the default.
    pub fn set_current(file: &Path, name: &str) -> Result<(), Error> {
        Self::require(file, name)?;
        file::update(file, |contexts| contexts.current = Some(name.to_owned()))
    }

    /// Removes a context from the file.
    pub fn remove(file: &Path, name: &str) -> Result<(), Error> {
        Self::require(file, name)?;
        file::update(file, |contexts| {
            contexts.contexts.retain(|known| known.name != name);
            contexts.current.take_if(|current| current == name);
        })
    }

    fn require(file: &Path, name: &str) -> Result<(), Error> {
        let contexts = Self::load(file)?;
        contexts.get(name).map(|_| ()).ok_or_else(|| contexts.unknown_context(name))
    }

    /// The context with this name.
    pub fn get(&self, name: &str) -> Option<&ClientContext> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// All contexts, in file order.
    pub fn iter(&self) -> impl Iterator<Item = &ClientContext> {
        self.contexts.iter()
    }

    /// Names in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.contexts.iter().map(|context| context.name.as_str())
    }

    /// Selects the target: the requested context, else the current one, else the local socket.
    pub fn select(&self, selection: TargetSelection) -> Result<ClientTarget, Error> {
        let context = match selection.context.as_ref().or(self.current.as_ref()) {
            Some(name) => Some(self.get(name).ok_or_else(|| self.unknown_context(name))?),
            None => None,
        };
        match (context, selection.socket) {
            (Some(context), _) if selection.managers.is_empty() => Ok(context.target.clone()),
            (None, Some(socket)) if selection.managers.is_empty() => Ok(ClientTarget::Unix { socket }),
            (Some(context), _) => match &context.target {
                ClientTarget::Tcp { identity, .. } => {
                    Ok(ClientTarget::Tcp { addresses: selection.managers, identity: identity.clone() })
                }
                ClientTarget::Unix { .. } => Err(Error::NoIdentity { context: context.name.clone() }),
            },
            (None, _) => Err(Error::NoContext { file: self.file.clone() }),
        }
    }

    /// Name of the selected context, if any.
    pub fn selected_name<'a>(&'a self, selection: &'a TargetSelection) -> Option<&'a str> {
        selection.context.as_deref().or(self.current.as_deref())
    }

    fn unknown_context(&self, name: &str) -> Error {
        let known = self.names().map(str::to_owned).collect();
        Error::UnknownContext { name: name.to_owned(), file: self.file.clone(), known }
    }
}

impl fmt::Display for ClientTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { addresses, .. } => {
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                f.write_str(&addresses.join(", "))
            }
            Self::Unix { socket } => write!(f, "{}", socket.display()),
        }
    }
}

#[cfg(test)]
mod tests;
