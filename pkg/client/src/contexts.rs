//! Which clusters a person knows, and as whom they are known there: `contexts.toml`.
//!
//! ```toml
//! current = "default"
//!
//! [[contexts]]
//! name = "default"
//! address = "10.0.0.7:8080"
//! ca = "-----BEGIN CERTIFICATE-----..."
//! certificate = "-----BEGIN CERTIFICATE-----..."
//! key = "-----BEGIN PRIVATE KEY-----..."
//!
//! [[contexts]]
//! name = "here"
//! socket = "/run/warren/warren.sock"
//! ```

mod file;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Names another contexts file.
pub const FILE_VARIABLE: &str = "WARREN_CONTEXTS";

/// The clusters in a contexts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contexts {
    file: PathBuf,
    /// Name of the one that is used when none is asked for.
    pub current: Option<String>,
    /// In the file's order, with distinct names.
    contexts: Vec<Context>,
}

/// One cluster, as one person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// For people; distinct within the file.
    pub name: String,
    /// Whom to talk to.
    pub target: Target,
}

/// A manager, and how to be known there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By mutual TLS.
    Tcp {
        /// Where the manager listens.
        address: Address,
        /// Who we are.
        identity: Identity,
    },
    /// By the unix socket of a manager on this machine, where the kernel says who we are.
    Unix {
        /// Path of the socket.
        socket: PathBuf,
    },
}

/// `HOST:PORT`; an IPv6 address is in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(String);

/// A text that is not `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address of a manager; give HOST:PORT, like 10.0.0.7:8080")]
pub struct ParseAddressError(String);

/// Who we are to a cluster, and how we know its managers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Certificates of the cluster's authority, PEM.
    pub ca: String,
    /// Our certificate, PEM.
    pub certificate: String,
    /// Its key.
    pub key: PrivateKey,
}

/// A private key, PEM. `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrivateKey(pub String);

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(redacted)")
    }
}

/// What was said about whom to talk to, beside the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// Name of a context.
    pub context: Option<String>,
    /// Another manager of the context's cluster.
    pub manager: Option<Address>,
    /// The socket of a manager on this machine, if there is one: used when there is no context at all.
    pub socket: Option<PathBuf>,
}

impl Contexts {
    /// Where the file is, from the environment: `WARREN_CONTEXTS`, else `warren/contexts.toml` in
    /// `XDG_CONFIG_HOME` or `~/.config`. `None` when none of them is set.
    pub fn path(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let set = |name| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || set("HOME").map(|home| home.join(".config"));
        // The XDG specification has relative paths ignored.
        let config = || set("XDG_CONFIG_HOME").filter(|path| path.is_absolute()).or_else(home);
        set(FILE_VARIABLE).or_else(|| config().map(|config| config.join("warren/contexts.toml")))
    }

    /// Reads the file; one that does not exist has no contexts.
    pub fn load(file: &Path) -> Result<Self, Error> {
        file::load(file)
    }

    /// Puts `context` into the file, in place of one of the same name, and makes it the current one. Other
    /// processes that do so at the same time wait for each other.
    pub fn ensure(file: &Path, context: Context) -> Result<(), Error> {
        file::update(file, |contexts| {
            contexts.current = Some(context.name.clone());
            match contexts.contexts.iter_mut().find(|known| known.name == context.name) {
                Some(known) => *known = context,
                None => contexts.contexts.push(context),
            }
        })
    }

    /// Takes the context out of the file, if it is there.
    pub fn remove(file: &Path, name: &str) -> Result<(), Error> {
        file::update(file, |contexts| {
            contexts.contexts.retain(|known| known.name != name);
            contexts.current.take_if(|current| current == name);
        })
    }

    /// The context of this name.
    pub fn get(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// Names in the file's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.contexts.iter().map(|context| context.name.as_str())
    }

    /// Whom to talk to: the context asked for, else the current one, else this machine's socket.
    pub fn select(&self, wish: Wish) -> Result<Target, Error> {
        let context = match wish.context.as_ref().or(self.current.as_ref()) {
            Some(name) => Some(self.get(name).ok_or_else(|| self.unknown(name))?),
            None => None,
        };
        match (wish.manager, context, wish.socket) {
            (None, Some(context), _) => Ok(context.target.clone()),
            (None, None, Some(socket)) => Ok(Target::Unix { socket }),
            (Some(address), Some(context), _) => match &context.target {
                Target::Tcp { identity, .. } => Ok(Target::Tcp { address, identity: identity.clone() }),
                Target::Unix { .. } => Err(Error::NoIdentity { context: context.name.clone() }),
            },
            (_, None, _) => Err(Error::NoContext { file: self.file.clone() }),
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let known = self.names().map(str::to_owned).collect();
        Error::UnknownContext { name: name.to_owned(), file: self.file.clone(), known }
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        let wrong = || ParseAddressError(text.chars().take(64).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let plain =
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        let number = port.parse::<u16>().is_ok_and(|port| port != 0) && !port.starts_with('+');
        if number && (bracketed || plain) { Ok(Self(text.to_owned())) } else { Err(wrong()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { address, .. } => address.fmt(f),
            Self::Unix { socket } => write!(f, "{}", socket.display()),
        }
    }
}

#[cfg(test)]
mod tests;
