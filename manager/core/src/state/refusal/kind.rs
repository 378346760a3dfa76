//! What people do things to, by its name.

use warren_types::ContentKind;

/// A kind of object, as people call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A service.
    Service,
    /// A task.
    Task,
    /// A node.
    Node,
    /// A join token.
    Token,
    /// A secret, a config or a registry's credential.
    Content(ContentKind),
    /// A volume.
    Volume,
    /// A manager.
    Manager,
}

impl Kind {
    /// `service`, `task`, `node`, `token`, `secret`, `volume`, `manager`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Task => "task",
            Self::Node => "node",
            Self::Token => "token",
            Self::Content(kind) => kind.as_str(),
            Self::Volume => "volume",
            Self::Manager => "manager",
        }
    }

    /// The command that shows the one of that name: `service inspect web`.
    pub(super) fn show(self, name: &str) -> String {
        match self {
            Self::Content(ContentKind::Credential) => self.list().to_owned(),
            _ => format!("{self} inspect {name}"),
        }
    }

    /// The command that lists them: `service ls`.
    pub(super) fn list(self) -> &'static str {
        match self {
            Self::Service => "service ls",
            Self::Task => "task ls",
            Self::Node => "node ls",
            Self::Token => "token ls",
            Self::Content(ContentKind::Secret) => "secret ls",
            Self::Content(ContentKind::Config) => "config ls",
            Self::Content(ContentKind::Credential) => "registry ls",
            Self::Volume => "volume ls",
            Self::Manager => "manager ls",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
