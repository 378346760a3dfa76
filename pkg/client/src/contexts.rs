//! Which clusters a person knows, and as whom they are known there: `contexts.toml`.
//!
//! ```toml
//! current = "default"
//!
//! [[contexts]]
//! name = "default"
//! addresses = ["10.0.0.7:8080", "10.0.0.8:8080"]
//! life = 1795336000
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

/// Names another contexts file.
pub const FILE_VARIABLE: &str = "WARREN_CONTEXTS";

/// A cluster's first life, before which there is none.
const FIRST_LIFE: u64 = 1;

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
    /// The latest life of the cluster that its managers were in: those of an earlier one are not heeded. 0: not known.
    pub life: u64,
}

/// The managers of a cluster, and how to be known there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// By mutual TLS.
    Tcp {
        /// Where managers are reached; at least one. They are tried in this order.
        addresses: Vec<ManagerAddress>,
        /// Who we are.
        identity: Identity,
    },
    /// By the unix socket of a manager on this machine, where the kernel says who we are.
    Unix {
        /// Path of the socket.
        socket: PathBuf,
    },
}

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
    /// Other managers of the context's cluster.
    pub managers: Vec<ManagerAddress>,
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

    /// Contexts whose identity `is_old` get `identity` in its place; all else stays. Answers how many there were.
    pub fn renew(
        file: &Path,
        is_old: impl Fn(&Identity) -> bool,
        identity: &Identity,
    ) -> Result<usize, Error> {
        let is_due = |context: &Context| match &context.target {
            Target::Tcp { identity, .. } => is_old(identity),
            Target::Unix { .. } => false,
        };
        let due = Self::load(file)?.contexts.iter().filter(|context| is_due(context)).count();
        if due == 0 {
            // The file is not even made.
            return Ok(0);
        }
        file::update(file, |contexts| {
            for context in contexts.contexts.iter_mut().filter(|context| is_due(context)) {
                if let Target::Tcp { identity: shown, .. } = &mut context.target {
                    *shown = identity.clone();
                }
            }
        })?;
        Ok(due)
    }

    /// Notes where the managers of a context's cluster are by now, as one of them said who was known by `identity`, and
    /// the latest life of the cluster. Answers whether the file was changed: not where it says the same, whatever the
    /// order, but for the first, nor where the context is another one by now or somebody else is writing.
    pub fn follow(
        file: &Path,
        name: &str,
        identity: &Identity,
        (managers, life): (&[ManagerAddress], u64),
    ) -> Result<bool, Error> {
        let differs = |addresses: &[ManagerAddress]| {
            let all = |addresses: &[ManagerAddress]| addresses.iter().cloned().collect::<BTreeSet<_>>();
            !managers.is_empty() && (addresses.first() != managers.first() || all(addresses) != all(managers))
        };
        let is_due = |context: &Context| match &context.target {
            Target::Tcp { addresses, identity: known } => {
                context.name == name
                    && known.ca == identity.ca
                    && (differs(addresses) || context.life.max(FIRST_LIFE) < life)
            }
            Target::Unix { .. } => false,
        };
        if !Self::load(file)?.contexts.iter().any(is_due) {
            return Ok(false);
        }
        file::try_update(file, |contexts| {
            for context in contexts.contexts.iter_mut().filter(|context| is_due(context)) {
                if life > FIRST_LIFE {
                    context.life = context.life.max(life);
                }
                if let Target::Tcp { addresses, .. } = &mut context.target
                    && !managers.is_empty()
                {
                    *addresses = managers.to_vec();
                }
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
        match (context, wish.socket) {
            (Some(context), _) if wish.managers.is_empty() => Ok(context.target.clone()),
            (None, Some(socket)) if wish.managers.is_empty() => Ok(Target::Unix { socket }),
            (Some(context), _) => match &context.target {
                Target::Tcp { identity, .. } => {
                    Ok(Target::Tcp { addresses: wish.managers, identity: identity.clone() })
                }
                Target::Unix { .. } => Err(Error::NoIdentity { context: context.name.clone() }),
            },
            (None, _) => Err(Error::NoContext { file: self.file.clone() }),
        }
    }

    /// The name of the context that `wish` is about, if there is one.
    pub fn chosen<'a>(&'a self, wish: &'a Wish) -> Option<&'a str> {
        wish.context.as_deref().or(self.current.as_deref())
    }

    fn unknown(&self, name: &str) -> Error {
        let known = self.names().map(str::to_owned).collect();
        Error::UnknownContext { name: name.to_owned(), file: self.file.clone(), known }
    }
}

impl fmt::Display for Target {
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
