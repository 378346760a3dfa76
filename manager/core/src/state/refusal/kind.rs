//! The kinds of objects that commands and queries name.

use warren_types::SecretObjectKind;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// The cluster itself.
    Cluster,
    /// A service.
    Service,
    /// A task.
    Task,
    /// A node.
    Node,
    /// A join token.
    Token,
    /// A user.
    User,
    /// A secret, a config or a registry credential.
    SecretObject(SecretObjectKind),
    /// A volume.
    Volume,
    /// A network.
    Network,
    /// A manager.
    Manager,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Cluster,
        Self::Service,
        Self::Task,
        Self::Node,
        Self::Network,
        Self::Volume,
        Self::SecretObject(SecretObjectKind::Secret),
        Self::SecretObject(SecretObjectKind::Config),
        Self::SecretObject(SecretObjectKind::Credential),
        Self::Token,
        Self::User,
        Self::Manager,
    ];

    /// `cluster`, `service`, `task`, `node`, `token`, `user`, `secret`, `volume`, `network`, `manager`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Service => "service",
            Self::Task => "task",
            Self::Node => "node",
            Self::Token => "token",
            Self::User => "user",
            Self::SecretObject(kind) => kind.as_str(),
            Self::Volume => "volume",
            Self::Network => "network",
            Self::Manager => "manager",
        }
    }

    /// Its noun on the command line, which is that of the API as well: `service`, `registry`.
    pub fn noun(self) -> &'static str {
        match self {
            Self::SecretObject(SecretObjectKind::Credential) => "registry",
            _ => self.as_str(),
        }
    }

    /// The kind with that noun.
    pub fn of_noun(noun: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.noun() == noun)
    }

    /// The command that shows the object with that name: `service inspect web`.
    pub(super) fn show_command(self, name: &str) -> String {
        match self {
            Self::SecretObject(SecretObjectKind::Credential) => self.list_command().to_owned(),
            _ => format!("{self} inspect {name}"),
        }
    }

    /// The command that lists them: `service ls`.
    pub(super) fn list_command(self) -> &'static str {
        match self {
            Self::Cluster => "cluster info",
            Self::Service => "service ls",
            Self::Task => "task ls",
            Self::Node => "node ls",
            Self::Token => "token ls",
            Self::User => "user ls",
            Self::SecretObject(SecretObjectKind::Secret) => "secret ls",
            Self::SecretObject(SecretObjectKind::Config) => "config ls",
            Self::SecretObject(SecretObjectKind::Credential) => "registry ls",
            Self::Volume => "volume ls",
            Self::Network => "network ls",
            Self::Manager => "manager ls",
        }
    }
}

impl std::fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
